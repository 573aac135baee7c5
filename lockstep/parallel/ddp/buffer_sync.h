// Copies the buffers of one rank's module to all others in one operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// One thread at a time.
class BufferSync {
 public:
  /// `description`: a line of describe_buffer() for each, the same on all ranks. Without buffers nothing is ever copied.
  BufferSync(ProcessGroup group, std::vector<at::Tensor> buffers, std::string description);
  /// May the buffers become others? Not those of a module that had none, nor those on a GPU.
  bool can_follow() const { return group_.size() == 1 || (packed_.defined() && has_header()); }
  /// From here on these are the module's buffers: some were registered or replaced, or have another dtype or shape, if
  /// can_follow(). The next broadcast() makes all ranks follow its source.
  void set_buffers(std::vector<at::Tensor> buffers, std::string description);
  /// Leaves the buffers of rank `source` in those of every rank. Blocks the others until they have them; the
  /// source only until they have taken those of the time before: it has nothing to wait for. A rank whose buffers have
  /// other names, dtypes or shapes keeps its own.
  void broadcast(int source);
  /// How this rank's buffers differ from those that the last broadcast() brought, for an error; empty: not at all.
  const std::string& difference() const { return difference_; }
  /// What roll_back() returns to is what the ranks have agreed on now. See StepMember.
  void commit() { before_step_.reset(); }
  /// Forgets what this rank sent last, which never arrives, and what the ranks have agreed on in a step.
  void roll_back();
  bool empty() const { return buffers_.empty(); }

 private:
  /// In front of the buffers' bytes, in main memory alone.
  struct Header {
    uint64_t
        has_changed;  ///< a description and the buffers, laid out anew, follow in operations of their own
    uint64_t bytes;   ///< of that layout
  };
  struct Agreement {
    std::string description;
    at::Tensor packed;
  };
  bool has_header() const { return packed_.is_cpu(); }
  Header& header() const { return *static_cast<Header*>(packed_.mutable_data_ptr()); }
  void lay_out(int64_t bytes);
  void find_places();
  void announce(int source);
  void follow(int source);
  void find_difference(int source);
  void keep_for_step();

  ProcessGroup group_;
  std::vector<at::Tensor> buffers_;
  std::string own_, agreed_;  // descriptions: of this rank's buffers, of what is sent
  std::string difference_{};
  at::Tensor packed_;  // bytes, shared by the ranks
  std::vector<at::Tensor>
      places_;  // of the buffers in it, if they are those of the description that was agreed on
  std::shared_ptr<Work> sent_;              // what this rank broadcast last
  std::optional<Agreement> before_step_{};  // of a step with a new one
};

}  // namespace lockstep
