// Training when ranks have different numbers of batches.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/join_session.h"

namespace lockstep {

/// Names, meanings and defaults are those of Python's Join and DistributedDataParallel.join.
struct JoinOptions {
  /// Divide the sum of gradients by the number of ranks of the group; otherwise by the number of those that
  /// still have inputs.
  bool divide_by_initial_world_size = true;
  /// false: `body` is only called.
  bool enable = true;
  /// When the first rank runs out of inputs, throw Error on all ranks.
  bool throw_on_early_termination = false;
};

class Joinable;

namespace detail {
template <class T>
concept can_join =
    is_wrapper<T> || std::is_base_of_v<JoinMember, T> || std::is_same_v<std::remove_const_t<T>, Joinable>;
}  // namespace detail

/// A wrapped module, whatever its type, or an optimizer that divides its work among the ranks, as join()
/// takes them. The optimizer must outlive it.
class Joinable {
 public:
  /// A model. Implicit, so that join() takes a list of models and optimizers.
  template <class M>
  Joinable(DistributedDataParallel<M>& ddp) : member_(ddp.core_) {}  // NOLINT: implicit by design
  /// For anything else: says at compile time what to write.
  template <class Member>
  requires(!detail::can_join<Member>) Joinable(Member& /*member*/) {  // NOLINT: implicit by design
    static_assert(
        detail::can_join<Member>,
        "join() takes DistributedDataParallel wrappers, and optimizers that divide their work "
        "(ZeroRedundancyOptimizer, FusedZeroRedundancyOptimizer): leave modules and other optimizers out");
  }
  /// ZeroRedundancyOptimizer and FusedZeroRedundancyOptimizer.
  template <class Member>
  requires std::is_base_of_v<detail::JoinMember, Member> Joinable(
      Member& member)  // NOLINT: implicit by design
      : member_(std::shared_ptr<void>(), &member) {}
  /// For join().
  detail::JoinMember& member() const { return *member_; }

 private:
  std::shared_ptr<detail::JoinMember> member_;
};

/// Calls `body`, which trains on this rank's inputs; once it is done, takes part in the other ranks' forward
/// and backward passes with zeros, and in the steps of optimizers that divide their work with this rank's
/// share of it, until all are done. Then the models of the rank that was last are copied to all (the highest
/// one, when several were). Other optimizers are not: their state is each rank's own.
///
///     lockstep::join({ddp}, [&] { for (auto& batch : loader) train(batch); });
///     lockstep::join({ddp, zero_redundancy_optimizer}, [&] { ... });
///
/// All ranks must give the same list, of one group (ValueError otherwise), and `body` must do nothing else
/// that is collective: forward and backward of the models and steps of the optimizers may come in any order
/// that is the same on all ranks. Inside, buckets leave at the end of backward. An exception in `body` is
/// passed on at once. Blocks until all ranks are done.
void join(const std::vector<Joinable>& members, const std::function<void()>& body, JoinOptions options = {});
/// For one member that is no list: says at compile time what to write.
template <class Member, class Body>
requires(!std::is_convertible_v<Member&&, const std::vector<Joinable>&>) void join(
    Member&& /*member*/, const Body& /*body*/, JoinOptions /*options*/ = {}) {
  static_assert(std::is_convertible_v<Member&&, const std::vector<Joinable>&>,
                "join() takes a list of models and optimizers: write join({ddp}, [&] { ... })");
}

}  // namespace lockstep
