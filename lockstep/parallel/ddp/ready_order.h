// In which order gradients become ready, which buckets are laid out in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The order in which parameters get their gradients: this rank's own, of one pass, until that of rank 0 has come,
/// which then is every rank's. One thread at a time.
class ReadyOrder {
 public:
  /// `names`: of the parameters, which are numbered by their places here.
  explicit ReadyOrder(std::vector<std::string> names);

  /// The parameter's gradient is ready, or again, which counts in place of the time before. Nothing changes once the
  /// order is rank 0's.
  void note(size_t parameter);
  /// Forgets an order that is this rank's own: a pass begins, or has failed, and nobody has agreed on it.
  void forget_own();
  /// Sends rank 0's order to all, once: where the order is this rank's own. Called by all ranks at the end of a pass,
  /// where they are together (forwards may come in another order on each). Does not block: a rank whose backward ended
  /// in an exception after its last gradient may not be there yet.
  void send(const ProcessGroup& group);
  /// Blocks until rank 0's order is here, if it has been sent.
  void receive();
  /// Whether buckets are to be laid out in rank 0's order now: true once for each such order.
  bool take_new_layout();
  /// Parameters have been frozen or freed: the next pass gives a new order. Until then this one is what is known.
  void start_over();
  /// The next layout is in this order, the same on all ranks. Blocks as receive(). Throws ValueError for a name that no
  /// parameter has.
  void load(const std::vector<std::string>& names);

  /// Is the order rank 0's, or will it be by receive()?
  bool is_agreed() const { return state_ != State::own; }
  /// As far as it is known: empty until a gradient has become ready.
  const std::vector<size_t>& parameters() const { return order_; }
  /// Returns the names of the parameters in this order. Blocks as receive().
  std::vector<std::string> names();
  /// Those, where the order is rank 0's and has come; else none. Does not block.
  std::vector<std::string> known_names() const;

  /// What is known now is what roll_back() returns to. Nothing is on its way.
  void commit();
  /// Forgets what has come, and what is on its way, since commit(): that operation never ends.
  void roll_back();

 private:
  enum class State : uint8_t { own, sent, agreed, laid_out };  // agreed: it is rank 0's

  std::vector<std::string> names_;
  std::vector<size_t> order_{};
  std::vector<bool> is_noted_;  // by parameter, while the order is this rank's own
  State state_ = State::own;
  std::vector<size_t> committed_order_{};
  State committed_state_ = State::own;
  bool has_changed_ = false;  // since commit()
  at::Tensor message_{};      // rank 0's order on its way, padded
  std::shared_ptr<Work> work_{};
};

}  // namespace lockstep
