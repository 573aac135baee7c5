// The state of torch::optim's optimizers, divided and put together again.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/zero_partition.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

using ParamState = torch::optim::OptimizerParamState;

/// The part of `whole`, the state of `parameter` in SGD, Adam, AdamW, Adagrad or RMSprop, that belongs to its
/// elements in `range`.
std::unique_ptr<ParamState> slice_of_state(const ParamState& whole, const at::Tensor& parameter,
                                           ElementRange range);
/// Puts `part`, the state of elements `range` of `parameter`, into `whole`, which is made when it is null.
void merge_state(std::unique_ptr<ParamState>& whole, const ParamState& part, const at::Tensor& parameter,
                 ElementRange range);

/// Throws ValueError, which begins with `who`: `tensor`, which is what `what` says, has another shape than `parameter`.
[[noreturn]] void refuse_shape(const std::string& who, const char* what, const at::Tensor& tensor,
                               const at::Tensor& parameter);
/// Does so if a tensor of `state`, which is that of `parameter`, has another shape.
void check_state_shape(const std::string& who, const ParamState& state, const at::Tensor& parameter);
/// Throws ValueError, which begins with `who`, if a parameter's entry in the state is null: LibTorch's load()
/// leaves that of a tensor that is listed twice.
void check_state_is_there(const std::string& who, const torch::optim::Optimizer& optimizer);
/// What torch::save writes for `optimizer`, and its opposite; the reader has the same groups of parameters, and
/// afterwards this state and nothing else.
std::string optimizer_bytes(const torch::optim::Optimizer& optimizer);
void read_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes);
void read_optimizer(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive);
/// Calls `load`, which is LibTorch's load() of `archive` into `optimizer`, and works around two faults of it:
/// it leaves state in place that the archive lacks, and it loses the state of a tensor that is listed twice.
/// Archive and optimizer may list tied tensors differently often. Throws ValueError for the state of a parameter
/// of another shape. If it throws, the optimizer is as it was before.
void load_in_place_of_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                            const std::function<void()>& load);

/// Elements `range` of parameter number `number`, counted over all groups; `local` is what an optimizer holds
/// of it: the parameter itself, or a flat tensor.
struct StatePiece {
  size_t number;
  at::Tensor parameter, local;
  ElementRange range;
};

using GroupOptions = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;
/// The options of all groups as scalars "param_groups.<group>.<option>", and their numbers of different
/// parameters; and the opposite, which throws ValueError where the groups differ.
void save_options(const std::vector<torch::optim::OptimizerParamGroup>& groups, StateDict& to);
GroupOptions read_options(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const StateDict& from);
void set_options(std::vector<torch::optim::OptimizerParamGroup>& groups, GroupOptions options);
/// The numbers and tensors of one parameter's state, and the values of options, by PyTorch's names; undefined tensors are left
/// out. The tensors share memory with the state's. Empty for a class that optimizer_state_dict() does not support.
std::optional<StateDict> state_members(const ParamState& state);
std::optional<StateDict> option_members(const torch::optim::OptimizerOptions& options);
/// The state that `optimizer` holds of `pieces`, under "state.<number>.<name>"; of a part of a parameter with
/// scalars "begin" and "end", its elements in the order of memory, and "strides", those of the parameter such as "6,1".
void save_pieces(const torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 StateDict& to);
/// Gives `optimizer`, in place of the state that it has, that of `pieces` out of all `parts` together. A part of a
/// parameter without "strides" lay in memory as the parameter does now.
void load_pieces(torch::optim::Optimizer& optimizer, const std::vector<StatePiece>& pieces,
                 const std::vector<StateDict>& parts);

}  // namespace lockstep::detail

namespace lockstep {

/// The options and the state of SGD, Adam, AdamW, Adagrad or RMSprop, ours and LibTorch's: scalars
/// "param_groups.<group>.<option>" and "state.<parameter>.step", tensors "state.<parameter>.<name>" with
/// PyTorch's names, where parameters are counted over all groups, as Python's state_dict() counts them: a tensor
/// that is listed several times is one parameter. The tensors share memory with the optimizer's.
/// A divided optimizer gives this rank's part; all ranks' parts are its state. Throws ValueError for any
/// other class. Not collective.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Gives `optimizer`, which has the same groups of parameters, those options and that state, as copies, in place of
/// the state that it has.
/// `parts`: the one state of an optimizer, or those of all ranks of a divided one; `optimizer` may be divided
/// otherwise, or not at all. Throws ValueError for other groups or a part that is missing, and for another
/// class. Not collective.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const std::vector<StateDict>& parts);

/// Options of broadcast_optimizer_state().
struct BroadcastOptimizerStateOptions {
  int src = 0;  ///< the rank whose state all get
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
};

/// Gives every rank the options and the state of one rank's optimizer, as after loading a checkpoint on that
/// rank alone (Horovod's broadcast_optimizer_state). State that another rank has and that one lacks is gone
/// afterwards. The optimizers are of one type, over the same parameters in the same groups: otherwise Error on
/// all ranks, and none has changed. Throws ValueError for divided ones, whose load_state_dict() takes a plain
/// optimizer, and Error on all ranks if one of them cannot save or load. Called by all ranks; blocks.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer,
                               BroadcastOptimizerStateOptions options = {});

}  // namespace lockstep
