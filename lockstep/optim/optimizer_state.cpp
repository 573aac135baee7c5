#include "lockstep/optim/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/memory/chunk_norm.h"
#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::detail {
namespace {

/// Calls `f(name, value)` for every member of an optimizer's state: int64_t or at::Tensor. false: another class.
template <class F>
bool visit_state(ParamState& state, const F& f) {
  const auto visit_adam = [&](auto& adam) {
    f("step", adam.step());
    f("exp_avg", adam.exp_avg());
    f("exp_avg_sq", adam.exp_avg_sq());
    f("max_exp_avg_sq", adam.max_exp_avg_sq());
  };
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    visit_adam(*adamw);
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    visit_adam(*adam);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    f("momentum_buffer", sgd->momentum_buffer());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    f("step", adagrad->step());
    f("sum", adagrad->sum());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    f("step", rmsprop->step());
    f("square_avg", rmsprop->square_avg());
    f("momentum_buffer", rmsprop->momentum_buffer());
    f("grad_avg", rmsprop->grad_avg());
  } else {
    return false;
  }
  return true;
}

/// The same for its options: double or bool.
template <class F>
bool visit_options(torch::optim::OptimizerOptions& options, const F& f) {
  const auto visit_adam = [&](auto& adam) {
    f("betas.0", std::get<0>(adam.betas()));
    f("betas.1", std::get<1>(adam.betas()));
    f("eps", adam.eps());
    f("weight_decay", adam.weight_decay());
    f("amsgrad", adam.amsgrad());
    f("lr", adam.lr());
  };
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
    visit_adam(*adamw);
  } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
    visit_adam(*adam);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    f("lr", sgd->lr());
    f("momentum", sgd->momentum());
    f("dampening", sgd->dampening());
    f("weight_decay", sgd->weight_decay());
    f("nesterov", sgd->nesterov());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradOptions*>(&options)) {
    f("lr", adagrad->lr());
    f("lr_decay", adagrad->lr_decay());
    f("weight_decay", adagrad->weight_decay());
    f("initial_accumulator_value", adagrad->initial_accumulator_value());
    f("eps", adagrad->eps());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    f("lr", rmsprop->lr());
    f("alpha", rmsprop->alpha());
    f("eps", rmsprop->eps());
    f("weight_decay", rmsprop->weight_decay());
    f("momentum", rmsprop->momentum());
    f("centered", rmsprop->centered());
  } else {
    return false;
  }
  return true;
}

std::unique_ptr<ParamState> new_state(const torch::optim::Optimizer& optimizer) {
  const auto& options = optimizer.defaults();
  if (dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    return std::make_unique<torch::optim::AdamWParamState>();
  }
  if (dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
    return std::make_unique<torch::optim::AdamParamState>();
  }
  if (dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
    return std::make_unique<torch::optim::SGDParamState>();
  }
  if (dynamic_cast<const torch::optim::AdagradOptions*>(&options)) {
    return std::make_unique<torch::optim::AdagradParamState>();
  }
  return std::make_unique<torch::optim::RMSpropParamState>();  // load_options() has refused any other
}

[[noreturn]] void refuse_class() {
  throw ValueError(
      "this optimizer's state cannot be saved: expected SGD, Adam, AdamW, Adagrad, RMSprop or one that divides "
      "them; a class of your own needs state_dict() and load_state_dict() (docs/checkpoints.md)");
}

/// Those that have one value per element of the parameter; some may be undefined.
std::vector<at::Tensor*> state_tensors(ParamState& state) {
  std::vector<at::Tensor*> tensors;
  const auto collect = [&](const char*, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) tensors.push_back(&value);
  };
  if (!visit_state(state, collect)) {
    throw Error("this optimizer's state cannot be divided among ranks by elements");
  }
  return tensors;
}

/// In the parameter's layout, which the tensor of a checkpoint may lack.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor) {
  if (tensor.strides() == parameter.strides()) return tensor;
  return at::empty_like(parameter, tensor.options()).copy_(tensor);
}

}  // namespace

std::unique_ptr<ParamState> slice_of_state(const ParamState& whole, const at::Tensor& parameter,
                                           ElementRange range) {
  std::unique_ptr<ParamState> slice = whole.clone();
  for (at::Tensor* tensor : state_tensors(*slice)) {
    if (!tensor->defined()) continue;
    const at::Tensor flat = in_memory_order(in_layout_of(parameter, *tensor));
    *tensor = flat.narrow(0, range.begin, range.end - range.begin).clone();
  }
  return slice;
}

void merge_state(std::unique_ptr<ParamState>& whole, const ParamState& part, const at::Tensor& parameter,
                 ElementRange range) {
  const bool is_first = !whole;
  if (is_first) whole = part.clone();
  const std::unique_ptr<ParamState> copy = part.clone();
  const std::vector<at::Tensor*> from = state_tensors(*copy), to = state_tensors(*whole);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i]->defined()) continue;
    if (is_first) *to[i] = at::zeros_like(parameter.detach(), from[i]->options());
    in_memory_order(*to[i]).narrow(0, range.begin, range.end - range.begin).copy_(*from[i]);
  }
}

void save_options(const std::vector<torch::optim::OptimizerParamGroup>& groups, StateDict& to) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string prefix = "param_groups." + std::to_string(g) + ".";
    to.scalars[prefix + "params"] = static_cast<int64_t>(groups[g].params().size());
    const std::unique_ptr<torch::optim::OptimizerOptions> options = groups[g].options().clone();
    const auto save = [&](const char* name, const auto& value) { to.scalars[prefix + name] = value; };
    if (!visit_options(*options, save)) refuse_class();
  }
}

GroupOptions read_options(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const StateDict& from) {
  constexpr const char* kWho = "load_optimizer_state_dict";
  size_t count = 0;
  while (from.scalars.contains("param_groups." + std::to_string(count) + ".params")) ++count;
  if (count != groups.size()) {
    throw ValueError("the saved optimizer has " + std::to_string(count) + " parameter groups, this one " +
                     std::to_string(groups.size()));
  }
  GroupOptions loaded;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string prefix = "param_groups." + std::to_string(g) + ".";
    const auto params = from.get<int64_t>(kWho, prefix + "params");
    if (params != static_cast<int64_t>(groups[g].params().size())) {
      throw ValueError("group " + std::to_string(g) + " of the saved optimizer has " +
                       std::to_string(params) + " parameters, this one's " +
                       std::to_string(groups[g].params().size()));
    }
    const auto load = [&](const char* name, auto& value) {
      value = from.get<std::decay_t<decltype(value)>>(kWho, prefix + name);
    };
    loaded.push_back(groups[g].options().clone());
    if (!visit_options(*loaded.back(), load)) refuse_class();
  }
  return loaded;
}

void set_options(std::vector<torch::optim::OptimizerParamGroup>& groups, GroupOptions options) {
  for (size_t g = 0; g < groups.size(); ++g) groups[g].set_options(std::move(options[g]));
}

void save_pieces(const torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 StateDict& to) {
  for (const StatePiece& piece : pieces) {
    const auto found = optimizer.state().find(piece.local.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const std::string prefix = "state." + std::to_string(piece.number) + ".";
    const auto save = [&](const char* name, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        if (value.defined()) to.tensors[prefix + name] = value.detach();
      } else {
        to.scalars[prefix + name] = value;
      }
    };
    if (!visit_state(*found->second, save)) refuse_class();
    if (!piece.local.is_same(piece.parameter)) {
      to.scalars[prefix + "begin"] = piece.range.begin;
      to.scalars[prefix + "end"] = piece.range.end;
    }
  }
}

namespace {

/// Elements `range` of `parameter` out of the tensors named `name` in all parts; undefined where none has it.
at::Tensor gather_elements(const std::string& prefix, const std::string& name, const at::Tensor& parameter,
                           ElementRange range, const std::vector<StateDict>& parts) {
  at::Tensor elements;
  // Groups of ranks that each divide the whole state save every element several times.
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const StateDict& part : parts) {
    const auto found = part.tensors.find(prefix + name);
    if (found == part.tensors.end()) continue;
    const bool is_piece = part.scalars.contains(prefix + "begin");
    const auto begin = is_piece ? part.get<int64_t>("load_optimizer_state_dict", prefix + "begin") : 0;
    const int64_t end = begin + found->second.numel();
    if (end > parameter.numel() || (!is_piece && found->second.sizes() != parameter.sizes())) {
      throw ValueError("the saved optimizer's " + prefix + name + " does not fit the parameter's shape");
    }
    if (!elements.defined()) {
      elements = at::empty({range.end - range.begin}, found->second.options().device(parameter.device()));
    }
    const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (from >= to) continue;
    const at::Tensor flat =
        is_piece ? found->second : in_memory_order(in_layout_of(parameter, found->second));
    elements.narrow(0, from - range.begin, to - from).copy_(flat.narrow(0, from - begin, to - from));
    ranges.emplace_back(from, to);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t complete = range.begin;  // up to here without a hole
  for (const auto& [from, to] : ranges) {
    if (from <= complete) complete = std::max(complete, to);
  }
  if (elements.defined() && complete < range.end) {
    throw ValueError("of the saved optimizer's " + prefix + name +
                     " elements are missing: load the parts of "
                     "all ranks that have saved");
  }
  return elements;
}

}  // namespace

void load_pieces(torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 const std::vector<StateDict>& parts) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<void*, std::unique_ptr<ParamState>>> states;
  for (const StatePiece& piece : pieces) {
    const std::string prefix = "state." + std::to_string(piece.number) + ".";
    std::unique_ptr<ParamState> state = new_state(optimizer);
    bool is_there = false;
    visit_state(*state, [&](const char* name, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        const at::Tensor elements = gather_elements(prefix, name, piece.parameter, piece.range, parts);
        if (!elements.defined()) return;
        is_there = true;
        if (!piece.local.is_same(piece.parameter)) {
          value = elements;
        } else {
          value = at::empty_like(piece.parameter.detach(), elements.options());
          in_memory_order(value).copy_(elements);
        }
      } else {
        for (const StateDict& part : parts) {
          if (!part.scalars.contains(prefix + name)) continue;
          value = part.get<int64_t>("load_optimizer_state_dict", prefix + name);
          is_there = true;
        }
      }
    });
    if (is_there) states.emplace_back(piece.local.unsafeGetTensorImpl(), std::move(state));
  }
  optimizer.state().clear();
  for (auto& [key, state] : states) optimizer.state()[key] = std::move(state);
}

std::string optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void read_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace lockstep::detail

namespace lockstep {
namespace {

std::vector<detail::StatePiece> whole_pieces(const torch::optim::Optimizer& optimizer) {
  std::vector<detail::StatePiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      pieces.push_back({pieces.size(), parameter, parameter, {0, parameter.numel()}});
    }
  }
  return pieces;
}

}  // namespace

StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer) {
  if (const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer)) {
    return sharded->shard_state_dict();
  }
  StateDict state;
  detail::save_options(optimizer.param_groups(), state);
  detail::save_pieces(optimizer, whole_pieces(optimizer), state);
  return state;
}

void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const std::vector<StateDict>& parts) {
  if (parts.empty()) throw ValueError("load_optimizer_state_dict: no state was given");
  if (auto* sharded = dynamic_cast<ShardedOptimizer*>(&optimizer)) return sharded->load_shards(parts);
  auto options = detail::read_options(optimizer.param_groups(), parts.front());
  detail::load_pieces(optimizer, whole_pieces(optimizer), parts);  // changes nothing where it throws
  detail::set_options(optimizer.param_groups(), std::move(options));
}

}  // namespace lockstep

void lockstep::broadcast_optimizer_state(torch::optim::Optimizer& optimizer,
                                         BroadcastOptimizerStateOptions options) {
  const ProcessGroup group = options.process_group ? *options.process_group : default_world();
  const bool is_source = group.rank() == options.src;
  const std::string bytes =
      group.broadcast_bytes(is_source ? detail::optimizer_bytes(optimizer) : "", {.src = options.src});
  if (!is_source) detail::read_optimizer(optimizer, bytes);
}
