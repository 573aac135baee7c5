#include "lockstep/optim/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/optimizer_state.h"

namespace lockstep {
using namespace detail;
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

bool is_whole(const Piece& piece) { return piece.local.is_same(piece.parameter); }

void copy_options(const ParamGroups& from, ParamGroups& to) {
  for (size_t g = 0; g < from.size(); ++g) to[g].set_options(from[g].options().clone());
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const char* name, ProcessGroup group, const ParamGroups& groups,
                                   std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                   MakeOptimizer make)
    : Optimizer(groups_once(name, groups), std::move(defaults)),
      name_(name),
      group_(std::move(group)),
      own_group_(group_.duplicate()),
      make_(std::move(make)) {
  size_t count = 0;
  for (const OptimizerParamGroup& each : param_groups_) {
    for (const at::Tensor& parameter : each.params()) {
      if (parameter.layout() != at::kStrided || !parameter.device().is_cpu()) {
        throw ValueError(fmt::format("{} takes dense parameters on the CPU, not one on {}", name_,
                                     parameter.device().str()));
      }
      ++count;
    }
  }
  if (count == 0) throw ValueError(fmt::format("{} got an empty parameter list", name_));
}

void ShardedOptimizer::make_local() {
  own_ = pieces_of(group_.rank());
  local_ = make_(groups_over(own_));
}

ParamGroups ShardedOptimizer::groups_over(const std::vector<std::vector<Piece>>& pieces) const {
  ParamGroups groups;
  for (size_t g = 0; g < pieces.size(); ++g) {
    std::vector<at::Tensor> tensors;
    for (const Piece& piece : pieces[g]) tensors.push_back(piece.local);
    groups.emplace_back(std::move(tensors), param_groups_[g].options().clone());
  }
  return groups;
}

ParamGroups ShardedOptimizer::whole_groups() const {
  ParamGroups groups;
  for (const OptimizerParamGroup& group : param_groups_) groups.push_back(group);
  return groups;
}

void ShardedOptimizer::sync_options() { copy_options(param_groups_, local_->param_groups()); }

void ShardedOptimizer::add_param_group(const OptimizerParamGroup& group) {
  ParamGroups all = whole_groups();
  all.push_back(group);
  Optimizer::add_param_group(groups_once(name_, all).back());
  try {
    groups_changed();
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
  // The tensors that the local optimizer holds stay the same ones.
  own_.push_back(std::move(pieces_of(group_.rank()).back()));
  local_->add_param_group(groups_over(own_).back());
  consolidated_.reset();  // it lacks this group
}

void ShardedOptimizer::set_lr(double lr) {
  for (OptimizerParamGroup& group : param_groups_) group.options().set_lr(lr);
}

void ShardedOptimizer::consolidate_state_dict(int to) {
  sync_options();
  const std::vector<std::string> shards = own_group_.gather_bytes(optimizer_bytes(*local_), {.dst = to});
  if (group_.rank() != to) return;
  consolidated_ = make_(whole_groups());
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::vector<std::vector<Piece>> pieces = pieces_of(rank);
    const std::unique_ptr<Optimizer> shard = make_(groups_over(pieces));
    read_optimizer(*shard, shards[static_cast<size_t>(rank)]);
    take_state(*shard, pieces);
  }
}

void ShardedOptimizer::take_state(const Optimizer& shard, const std::vector<std::vector<Piece>>& pieces) {
  for (const std::vector<Piece>& group : pieces) {
    for (const Piece& piece : group) {
      const auto found = shard.state().find(piece.local.unsafeGetTensorImpl());
      if (found == shard.state().end()) continue;
      std::unique_ptr<ParamState>& slot = consolidated_->state()[piece.parameter.unsafeGetTensorImpl()];
      if (is_whole(piece)) {
        slot = found->second->clone();
      } else {
        merge_state(slot, *found->second, piece.parameter, piece.range);
      }
    }
  }
}

const Optimizer& ShardedOptimizer::consolidated() const {
  if (!consolidated_) {
    throw Error(fmt::format(
        "{}: the state has not been consolidated on rank {}; call consolidate_state_dict({}) on all "
        "ranks first",
        name_, group_.rank(), group_.rank()));
  }
  copy_options(param_groups_, consolidated_->param_groups());
  return *consolidated_;
}

void ShardedOptimizer::load_state_dict(const Optimizer& plain) {
  const ParamGroups& theirs = plain.param_groups();
  if (theirs.size() != param_groups_.size()) {
    throw ValueError(fmt::format("{}: the loaded state has {} parameter groups, this optimizer {}", name_,
                                 theirs.size(), param_groups_.size()));
  }
  const auto their_parameters = tensors_once(theirs);
  for (size_t g = 0; g < theirs.size(); ++g) {
    if (their_parameters[g].size() == param_groups_[g].params().size()) continue;
    throw ValueError(fmt::format("{}: group {} of the loaded state has {} parameters, this optimizer's {}",
                                 name_, g, their_parameters[g].size(), param_groups_[g].params().size()));
  }
  const auto& their_defaults = plain.defaults();
  const auto& own_defaults = defaults();
  if (typeid(their_defaults) != typeid(own_defaults)) {
    throw ValueError(fmt::format("{}: the loaded state is that of another class of optimizer", name_));
  }
  detail::check_state_is_there(fmt::format("{}: the loaded state", name_), plain);
  for (size_t g = 0; g < theirs.size(); ++g) {
    for (size_t p = 0; p < their_parameters[g].size(); ++p) {
      const auto found = plain.state().find(their_parameters[g][p].unsafeGetTensorImpl());
      if (found == plain.state().end()) continue;
      check_state_shape(fmt::format("{}: the loaded state", name_), *found->second,
                        param_groups_[g].params()[p]);
    }
  }
  copy_options(theirs, param_groups_);
  sync_options();
  local_->state().clear();
  for (size_t g = 0; g < own_.size(); ++g) {
    for (const Piece& piece : own_[g]) {
      const std::vector<at::Tensor>& parameters = param_groups_[g].params();
      size_t index = 0;
      while (!parameters[index].is_same(piece.parameter)) ++index;
      const auto found = plain.state().find(their_parameters[g][index].unsafeGetTensorImpl());
      if (found == plain.state().end()) continue;
      local_->state()[piece.local.unsafeGetTensorImpl()] =
          is_whole(piece) ? found->second->clone()
                          : slice_of_state(*found->second, piece.parameter, piece.range);
    }
  }
}

std::vector<StatePiece> ShardedOptimizer::own_state_pieces() const {
  std::vector<StatePiece> pieces;
  size_t before = 0;  // parameters of the groups before
  for (size_t g = 0; g < own_.size(); ++g) {
    const std::vector<at::Tensor>& parameters = param_groups_[g].params();
    for (const Piece& piece : own_[g]) {
      size_t index = 0;
      while (!parameters[index].is_same(piece.parameter)) ++index;
      pieces.push_back({before + index, piece.parameter, piece.local, piece.range});
    }
    before += parameters.size();
  }
  return pieces;
}

std::vector<at::Tensor> ShardedOptimizer::own_weights() const {
  std::vector<at::Tensor> weights;
  for (const std::vector<Piece>& group : own_) {
    for (const Piece& piece : group) weights.push_back(piece.local.detach());
  }
  return weights;
}

StateDict ShardedOptimizer::shard_state_dict() const {
  StateDict state;
  save_options(param_groups_, state);
  save_pieces(*local_, own_state_pieces(), state);
  return state;
}

void ShardedOptimizer::load_shards(const std::vector<StateDict>& parts) {
  GroupOptions options = read_options(param_groups_, parts.front());
  load_pieces(*local_, own_state_pieces(), parts);  // changes nothing where it throws
  set_options(param_groups_, std::move(options));
  sync_options();
}

void ShardedOptimizer::enter_join(std::shared_ptr<JoinSession> session, int index) {
  join_ = std::move(session);
  join_index_ = index;
}

std::vector<double> ShardedOptimizer::learning_rates() const {
  std::vector<double> rates;
  for (const OptimizerParamGroup& group : param_groups_) rates.push_back(group.options().get_lr());
  return rates;
}

torch::Tensor ShardedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  verify_full_precision((name_ + "::step").c_str(), param_groups_);
  const WeightUpdate update(name_.c_str());
  if (update.is_skipped()) return loss;
  announce(JoinSession::Phase::step, learning_rates());
  step_share();
  return loss;
}

void ShardedOptimizer::announce_clip(const Clipping& clipping) {
  announce(JoinSession::Phase::clip, {clipping.max_norm, clipping.norm_type, clipping.scales ? 1.0 : 0.0,
                                      clipping.error_if_nonfinite ? 1.0 : 0.0});
}

void ShardedOptimizer::announce(JoinSession::Phase phase, std::vector<double> values) {
  if (!join_) {
    return JoinSession::check_none(
        group_, name_ + (phase == JoinSession::Phase::step ? ": step()" : ": clip_grad_norm_()"));
  }
  tell(join_->announce(join_index_, phase).highest_active_rank, values);
}

/// `values` become those of rank `source`.
void ShardedOptimizer::tell(int source, std::vector<double>& values) const {
  // Memory of its own: after a failure an engine may still write it.
  const at::Tensor all = at::tensor(values, at::kDouble);
  own_group_.broadcast(all, {.src = source});
  std::copy_n(all.const_data_ptr<double>(), values.size(), values.begin());
}

void ShardedOptimizer::shadow(const JoinSession::Answer& answer) {
  if (answer.phase == JoinSession::Phase::clip) {
    std::vector<double> values(4);
    tell(answer.highest_active_rank, values);
    return clip_share({values[0], values[1], values[2] != 0, values[3] != 0});
  }
  std::vector<double> rates = learning_rates();
  tell(answer.highest_active_rank, rates);
  for (size_t g = 0; g < rates.size(); ++g) param_groups_[g].options().set_lr(rates[g]);
  const WeightUpdate update{WeightUpdate::AgreedBefore{}};
  step_share();
}

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const { consolidated().save(archive); }

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  const std::unique_ptr<Optimizer> plain = make_(whole_groups());
  read_optimizer(*plain, archive);
  load_state_dict(*plain);
}

}  // namespace lockstep
