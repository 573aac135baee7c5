// Where a sampler is: the epoch, and how far in it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// What decides which samples follow each other, but for the epoch.
struct SampleOrder {
  std::string_view sampler{};  ///< the class, for errors
  int64_t dataset_size = 0;
  uint64_t seed = 0;
  int64_t of_pass = 0;    ///< samples that all ranks together take in an epoch
  int64_t at_a_time = 1;  ///< how many of them they take together
  int num_replicas = 1;
  std::map<std::string, StateDict::Scalar> choices{};  ///< the sampler's own, by name
};

/// What the samplers' states have in common. Samples are counted of all ranks together, so that another number of ranks can
/// go on from there. A pass that ended here, in this process, is followed by a whole one, as in PyTorch, also without
/// set_epoch(); a state that was loaded begins at its place once. Drawing changes only what tells these apart.
class EpochPosition {
 public:
  /// What a loader keeps of the pass that it has drawn.
  struct Pass {
    int64_t epoch = 0;
    uint64_t places = 0, calls = 0, advances = 0;
    bool is_over = false;  ///< pass_ended() sets it
  };

  explicit EpochPosition(SampleOrder order) : order_(std::move(order)) {}

  int64_t epoch() const { return epoch_; }
  void set_epoch(int64_t next);
  /// Each rank has used so many. Throws Error if no order was drawn since set_epoch() or load() made it another one.
  void advance(int64_t samples);
  StateDict save() const;
  /// Throws ValueError for a state of another order, and for a position between two rounds of the ranks or before the first.
  void load(const StateDict& state);
  /// A rank's `indices` of the epoch without those that it has passed. Throws Error where the caller asks again for the
  /// rest of a loaded epoch that is over: whether that is another pass cannot be known.
  std::vector<int64_t> rest_of(std::vector<int64_t> indices) const;

  // --- for loaders

  /// Throws ValueError for a dataset that has fewer samples; 0: it does not say how many.
  void check_fits(int64_t samples) const;
  /// The next rest_of() is for a look at the pass that would begin now, which it does not begin.
  void look() const { draws_ = Draws::rest; }
  /// The next rest_of() begins the pass that follows `last`: a whole one if that is over. Returns it.
  Pass begin_pass(const Pass& last) const;
  /// The pass that begins now, or goes on.
  Pass pass() const { return {.epoch = epoch_, .places = places_, .calls = calls_, .advances = advances_}; }
  /// The user has got all of `pass`. If advance() has passed all but less than a batch, that has been dropped.
  void pass_ended(Pass& pass, int64_t batch_size) const;
  /// Whether advance() was called in `pass`.
  bool was_counted(const Pass& pass) const { return advances_ != pass.advances; }
  /// Whether set_epoch() or load() came after `pass` was drawn.
  bool was_called_after(const Pass& pass) const { return calls_ != pass.calls; }
  /// What this rank has left of the epoch.
  int64_t samples_left() const { return (order_.of_pass - samples_) / order_.num_replicas; }
  /// The epoch, and what else decides the order: the part of save() that is no place.
  StateDict order(int64_t of_epoch) const;
  /// Throws ValueError that begins with `who` for what order() gave in another sampler. The epoch is not compared.
  void check_order(std::string_view who, const StateDict& state) const;

 private:
  enum class Draws : uint8_t { by_hand, rest, whole };

  SampleOrder order_;
  int64_t epoch_ = 0, samples_ = 0;
  uint64_t places_ = 0;              // how often the epoch or the place was set
  uint64_t calls_ = 0;               // of set_epoch() and load()
  uint64_t advances_ = 0;            // calls
  bool is_passed_ = false;           // advance() has passed the epoch's last sample
  bool awaits_epoch_ = false;        // load() was called and not set_epoch()
  mutable bool is_ended_ = false;    // a loader has: what is left was dropped
  mutable bool is_renewed_ = false;  // and the order of the next pass was drawn
  mutable bool is_drawn_ = true;     // someone has the order of now
  // The rest of a loaded epoch that is over:
  mutable bool was_asked_ = false;  // indices() was called for it
  mutable bool was_given_ = false;  // a loader had a pass of it
  mutable Draws draws_ = Draws::by_hand;
};

}  // namespace lockstep::detail
