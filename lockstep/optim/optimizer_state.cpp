#include "lockstep/optim/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/memory/chunk_norm.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/ddp/module_check.h"

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

/// Calls `f(name, value)` for every option of an optimizer: double or bool. false: another class.
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

void refuse_shape(const std::string& who, const char* what, const at::Tensor& tensor,
                  const at::Tensor& parameter) {
  throw ValueError(fmt::format("{}: {} of a parameter of shape [{}] has the shape [{}]", who, what,
                               fmt::join(parameter.sizes(), ", "), fmt::join(tensor.sizes(), ", ")));
}

void check_state_shape(const std::string& who, const ParamState& state, const at::Tensor& parameter) {
  const auto check = [&](const char* name, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
      if (value.defined() && value.sizes() != parameter.sizes()) refuse_shape(who, name, value, parameter);
    }
  };
  visit_state(const_cast<ParamState&>(state), check);  // which only reads
}

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

std::optional<StateDict> state_members(const ParamState& state) {
  StateDict members;
  const auto save = [&](const char* name, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
      if (value.defined()) members.tensors[name] = value.detach();
    } else {
      members.scalars[name] = value;
    }
  };
  // visit_state() can write too, which `save` does not; nor can visit_options().
  if (!visit_state(const_cast<ParamState&>(state), save)) return std::nullopt;
  return members;
}

std::optional<StateDict> option_members(const torch::optim::OptimizerOptions& options) {
  StateDict members;
  const auto save = [&](const char* name, const auto& value) { members.scalars[name] = value; };
  if (!visit_options(const_cast<torch::optim::OptimizerOptions&>(options), save)) return std::nullopt;
  return members;
}

void save_options(const std::vector<torch::optim::OptimizerParamGroup>& groups, StateDict& to) {
  const auto once = tensors_once(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string prefix = fmt::format("param_groups.{}.", g);
    to.scalars[prefix + "params"] = static_cast<int64_t>(once[g].size());
    const std::unique_ptr<torch::optim::OptimizerOptions> options = groups[g].options().clone();
    const auto save = [&](const char* name, const auto& value) { to.scalars[prefix + name] = value; };
    if (!visit_options(*options, save)) refuse_class();
  }
}

GroupOptions read_options(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const StateDict& from) {
  constexpr const char* kWho = "load_optimizer_state_dict";
  size_t count = 0;
  while (from.scalars.contains(fmt::format("param_groups.{}.params", count))) ++count;
  if (count != groups.size()) {
    throw ValueError(
        fmt::format("the saved optimizer has {} parameter groups, this one {}", count, groups.size()));
  }
  GroupOptions loaded;
  const auto once = tensors_once(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string prefix = fmt::format("param_groups.{}.", g);
    const auto params = from.get<int64_t>(kWho, prefix + "params");
    if (params != static_cast<int64_t>(once[g].size())) {
      throw ValueError(fmt::format("group {} of the saved optimizer has {} parameters, this one's {}", g,
                                   params, once[g].size()));
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

namespace {

/// Between commas; 1 for a dimension of one element, whose stride says nothing.
std::string describe_strides(const at::Tensor& parameter) {
  std::string text;
  for (int64_t d = 0; d < parameter.dim(); ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ",", parameter.size(d) > 1 ? parameter.stride(d) : 1);
  }
  return text;
}

/// A tensor of the parameter's shape without memory, and with the strides of describe_strides(). Undefined: they are
/// those of another shape.
at::Tensor lay_out(const at::Tensor& parameter, const std::string& strides) {
  std::vector<int64_t> numbers;
  const char* begin = strides.data();
  const char* const end = begin + strides.size();
  while (begin != end) {
    const auto [next, error] = std::from_chars(begin, end, numbers.emplace_back());
    if (error != std::errc() || numbers.back() < 1 || numbers.back() > parameter.numel()) return {};
    begin = next == end ? end : next + 1;
  }
  if (static_cast<int64_t>(numbers.size()) != parameter.dim()) return {};
  const at::Tensor laid_out =
      at::empty_strided(parameter.sizes(), numbers, parameter.options().device(at::kMeta));
  return laid_out.is_non_overlapping_and_dense() ? laid_out : at::Tensor();
}

bool has_same_order(const at::Tensor& a, const at::Tensor& b) {
  return describe_strides(a) == describe_strides(b);
}

/// How the parameter lay in memory when parts of it were saved: a tensor without memory, dense.
at::Tensor find_saved_layout(const std::string& prefix, const at::Tensor& parameter,
                             const std::vector<StateDict>& parts) {
  const at::Tensor now = at::empty_like(parameter, parameter.options().device(at::kMeta));
  at::Tensor found;
  for (const StateDict& part : parts) {
    if (!part.scalars.contains(prefix + "begin")) continue;
    const std::string name = prefix + "strides";
    const at::Tensor layout =
        part.scalars.contains(name)
            ? lay_out(parameter, part.get<std::string>("load_optimizer_state_dict", name))
            : now;
    if (!layout.defined()) {
      throw ValueError(
          fmt::format("the saved optimizer's {} is that of a parameter of another shape than this one's [{}]",
                      name, fmt::join(parameter.sizes(), ", ")));
    }
    if (found.defined() && !has_same_order(found, layout)) {
      throw ValueError(
          fmt::format("the saved optimizer's {} differs between the ranks that have saved", name));
    }
    found = layout;
  }
  return found.defined() ? found : now;
}

}  // namespace

void save_pieces(const torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 StateDict& to) {
  for (const StatePiece& piece : pieces) {
    const auto found = optimizer.state().find(piece.local.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const std::string prefix = fmt::format("state.{}.", piece.number);
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
      to.scalars[prefix + "strides"] = describe_strides(piece.parameter);
    }
  }
}

namespace {

/// Elements `range` of `parameter` out of the tensors named `name` in all parts; undefined where none has it. Elements
/// count in the order of `layout`, in which the parts were saved.
at::Tensor gather_in_order(const at::Tensor& layout, const std::string& prefix, const std::string& name,
                           const at::Tensor& parameter, ElementRange range,
                           const std::vector<StateDict>& parts) {
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
      throw ValueError(
          fmt::format("the saved optimizer's {}{} does not fit the parameter's shape", prefix, name));
    }
    if (!elements.defined()) {
      elements = at::empty({range.end - range.begin}, found->second.options().device(parameter.device()));
    }
    const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (from >= to) continue;
    const at::Tensor flat = is_piece ? found->second : in_memory_order(in_layout_of(layout, found->second));
    elements.narrow(0, from - range.begin, to - from).copy_(flat.narrow(0, from - begin, to - from));
    ranges.emplace_back(from, to);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t complete = range.begin;  // up to here without a hole
  for (const auto& [from, to] : ranges) {
    if (from <= complete) complete = std::max(complete, to);
  }
  if (elements.defined() && complete < range.end) {
    throw ValueError(fmt::format(
        "of the saved optimizer's {}{} elements are missing: load the parts of all ranks that have "
        "saved",
        prefix, name));
  }
  return elements;
}

/// Gathers them in the order of the parameter's memory.
at::Tensor gather_elements(const at::Tensor& layout, const std::string& prefix, const std::string& name,
                           const at::Tensor& parameter, ElementRange range,
                           const std::vector<StateDict>& parts) {
  const at::Tensor own = at::empty_like(parameter, parameter.options().device(at::kMeta));
  if (has_same_order(layout, own)) return gather_in_order(layout, prefix, name, parameter, range, parts);
  at::Tensor all = gather_in_order(layout, prefix, name, parameter, {0, parameter.numel()}, parts);
  if (!all.defined()) return all;
  const at::Tensor whole = all.as_strided(layout.sizes(), layout.strides());
  return in_memory_order(in_layout_of(own, whole)).narrow(0, range.begin, range.end - range.begin).clone();
}

}  // namespace

void load_pieces(torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 const std::vector<StateDict>& parts) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<void*, std::unique_ptr<ParamState>>> states;
  for (const StatePiece& piece : pieces) {
    const std::string prefix = fmt::format("state.{}.", piece.number);
    std::unique_ptr<ParamState> state = new_state(optimizer);
    const at::Tensor layout = find_saved_layout(prefix, piece.parameter, parts);
    bool is_there = false;
    visit_state(*state, [&](const char* name, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        const at::Tensor elements =
            gather_elements(layout, prefix, name, piece.parameter, piece.range, parts);
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

void check_state_is_there(const std::string& who, const torch::optim::Optimizer& optimizer) {
  for (const auto& group : tensors_once(optimizer.param_groups())) {
    for (const at::Tensor& parameter : group) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second) continue;
      throw ValueError(fmt::format(
          "{}: the state of a tensor that the optimizer lists twice ({} [{}]) is lost: LibTorch's load() loses it. Make the "
          "optimizer of lockstep::parameters(module) before you load",
          who, c10::toString(parameter.scalar_type()), fmt::join(parameter.sizes(), ", ")));
    }
  }
}

std::string optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  check_state_is_there("the optimizer cannot be saved", optimizer);
  // LBFGS writes `al` before it reads it, in each step; LibTorch cannot save the undefined tensors in it.
  for (const auto& [key, state] : optimizer.state()) {
    if (auto* lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(state.get())) lbfgs->al(std::nullopt);
  }
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
  read_optimizer(optimizer, archive);
}

void read_optimizer(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  const bool is_ours = dynamic_cast<const FusedAdamW*>(&optimizer) != nullptr ||
                       dynamic_cast<const FusedSGD*>(&optimizer) != nullptr;
  if (is_ours) return optimizer.load(archive);
  load_in_place_of_state(optimizer, archive, [&] { optimizer.load(archive); });
}

namespace {

/// By group and parameter of an archive: is it listed before? Nothing for another format than that of LibTorch's
/// optimizers.
std::optional<std::vector<std::vector<bool>>> repeats_in(torch::serialize::InputArchive& archive) {
  c10::IValue version, key;
  at::Tensor size;
  torch::serialize::InputArchive groups;
  if (!archive.try_read("pytorch_version", version)) return std::nullopt;
  if (!archive.try_read("param_groups", groups)) return std::nullopt;
  if (!groups.try_read("param_groups/size", size)) return std::nullopt;
  std::vector<std::vector<bool>> repeats(static_cast<size_t>(size.item<int64_t>()));
  std::unordered_set<std::string> seen;
  for (size_t g = 0; g < repeats.size(); ++g) {
    torch::serialize::InputArchive group;
    groups.read(fmt::format("param_groups/{}", g), group);
    at::Tensor count;  // read() writes into a tensor that is defined, which would be one of the archive's
    group.read("params/size", count);
    for (int64_t p = 0; p < count.item<int64_t>(); ++p) {
      group.read(fmt::format("params/{}", p), key);
      repeats[g].push_back(!seen.insert(key.toStringRef()).second);
    }
  }
  return repeats;
}

/// The tensors of a group for an archive that lists some of them again: whatever has no state stands there.
std::vector<at::Tensor> listed_as(const std::vector<bool>& repeats, const std::vector<at::Tensor>& once) {
  std::vector<at::Tensor> tensors;
  size_t next = 0;
  for (const bool is_repeat : repeats) tensors.push_back(is_repeat ? at::empty({0}) : once[next++]);
  return tensors;
}

}  // namespace

void load_in_place_of_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                            const std::function<void()>& load) {
  auto& groups = optimizer.param_groups();
  const auto once = tensors_once(groups);
  const auto repeats = repeats_in(archive);
  const auto& defaults = optimizer.defaults();
  const bool lists_count =
      dynamic_cast<const torch::optim::LBFGSOptions*>(&defaults) != nullptr;  // its state is one vector
  if (repeats && repeats->size() != groups.size()) {
    throw ValueError(fmt::format("the saved optimizer has {} parameter groups, this one {}", repeats->size(),
                                 groups.size()));
  }
  for (size_t g = 0; repeats && g < groups.size(); ++g) {
    const auto saved =
        lists_count ? (*repeats)[g].size()
                    : static_cast<size_t>(std::count((*repeats)[g].begin(), (*repeats)[g].end(), false));
    const size_t own = lists_count ? groups[g].params().size() : once[g].size();
    if (saved == own) continue;
    throw ValueError(
        fmt::format("group {} of the saved optimizer has {} parameters, this one's {}", g, saved, own));
  }
  std::vector<std::vector<at::Tensor>> tensors;
  GroupOptions options;
  for (const auto& group : groups) {
    tensors.push_back(group.params());
    options.push_back(group.options().clone());
  }
  std::remove_reference_t<decltype(optimizer.state())> state_before;
  std::swap(state_before, optimizer.state());
  const auto put_tensors_back = [&] {
    for (size_t g = 0; g < groups.size(); ++g) groups[g].params() = tensors[g];
  };
  try {
    for (size_t g = 0; repeats && g < groups.size(); ++g) {
      groups[g].params() = listed_as((*repeats)[g], once[g]);
    }
    load();
    for (const auto& group : once) {
      for (const at::Tensor& parameter : group) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end() || !found->second) continue;
        check_state_shape("the saved optimizer does not fit", *found->second, parameter);
      }
    }
  } catch (...) {
    put_tensors_back();
    set_options(groups, std::move(options));
    std::swap(state_before, optimizer.state());
    throw;
  }
  put_tensors_back();
  std::vector<void*> without_parameter;  // that of the tensors which stood for repeated ones
  for (const auto& [key, state] : optimizer.state()) {
    if (!state) without_parameter.push_back(key);
  }
  for (void* const key : without_parameter) optimizer.state().erase(key);
}

}  // namespace lockstep::detail

namespace lockstep {
namespace {

std::vector<detail::StatePiece> whole_pieces(const torch::optim::Optimizer& optimizer) {
  std::vector<detail::StatePiece> pieces;
  for (const auto& group : detail::tensors_once(optimizer.param_groups())) {
    for (const at::Tensor& parameter : group) {
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
  detail::check_state_is_there("optimizer_state_dict", optimizer);
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

namespace {

constexpr const char* kBroadcast = "broadcast_optimizer_state";

/// What must be the same on all ranks, a line each.
std::string describe(const torch::optim::Optimizer& optimizer) {
  const auto& options = optimizer.defaults();
  std::string text = fmt::format("optimizer with {}\n", c10::demangle(typeid(options).name()));
  if (dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr) text += "divided among the ranks\n";
  const bool lists_count =
      dynamic_cast<const torch::optim::LBFGSOptions*>(&options) != nullptr;  // its state is one vector
  const auto groups = detail::tensors_once(optimizer.param_groups());
  for (size_t g = 0; g < groups.size(); ++g) {
    const size_t count = lists_count ? optimizer.param_groups()[g].params().size() : groups[g].size();
    text += fmt::format("group {} of {} parameters\n", g, count);
    for (size_t p = 0; p < groups[g].size(); ++p) {
      const at::Tensor& parameter = groups[g][p];
      text += fmt::format("parameter {} of group {} [{}] {}\n", p, g, fmt::join(parameter.sizes(), ", "),
                          c10::toString(parameter.scalar_type()));
    }
  }
  return text;
}

/// The text of what `body` throws; empty: it did not throw.
template <class F>
std::string text_of_error(const F& body) {
  try {
    body();
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, BroadcastOptimizerStateOptions options) {
  const ProcessGroup group = options.process_group ? *options.process_group : default_world();
  verify_same_on_all_ranks(group, kBroadcast, describe(optimizer));
  if (dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr) {
    throw ValueError(
        fmt::format("{}: this optimizer's state is divided among the ranks, each has a part; give "
                    "load_state_dict() a plain optimizer on every rank",
                    kBroadcast));
  }
  const bool is_source = group.rank() == options.src;
  std::string bytes, problem;
  if (is_source) problem = text_of_error([&] { bytes = detail::optimizer_bytes(optimizer); });
  problem = group.broadcast_bytes(problem, {.src = options.src});
  if (!problem.empty()) {
    throw Error(
        fmt::format("{}: rank {} cannot save its optimizer's state: {}", kBroadcast, options.src, problem));
  }
  bytes = group.broadcast_bytes(bytes, {.src = options.src});
  if (!is_source) problem = text_of_error([&] { detail::read_optimizer(optimizer, bytes); });
  const std::vector<std::string> problems = group.all_gather_bytes(problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    throw Error(fmt::format("{}: rank {} cannot load rank {}'s state: {}", kBroadcast, rank, options.src,
                            problems[rank]));
  }
}

}  // namespace lockstep
