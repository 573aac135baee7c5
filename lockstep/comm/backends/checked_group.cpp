#include "lockstep/comm/backends/checked_group.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/forwarding_group.h"
#include "lockstep/comm/process_group/messages.h"

namespace lockstep {
namespace {

/// What a rank calls, as text that ends with 0: a fixed length, so that comparing never differs.
constexpr size_t kFingerprintBytes = 256;

class CheckedGroup : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  WorkPtr start(const Collective& collective) override {
    if (!collective.is_message()) check(describe(collective), collective.timeout);
    return group_->start(collective);
  }
  int run(const Collective& collective) override {
    if (!collective.is_message()) check(describe(collective), collective.timeout);
    return group_->run(collective);
  }
  std::shared_ptr<Impl> new_group(const std::vector<int>& members, Timeout timeout) override {
    auto made = group_->new_group(members, timeout);
    return made ? make_checked(std::move(made)) : nullptr;
  }
  void stop() { is_checking_ = false; }
  void clear() override {
    difference_.clear();
    collectives_ = 0;  // the ranks may have come to different numbers
    group_->clear();
  }

 private:
  void check(const std::string& call, Timeout timeout) {
    if (!is_checking_) return;
    if (!difference_.empty()) throw MismatchError(difference_);
    std::string own = fmt::format("collective {}: {}", ++collectives_, call);
    own.resize(kFingerprintBytes - 1);
    own.push_back('\0');
    if (!group_->traits().names_late) group_->monitored_barrier(timeout);  // the one that does
    const at::Tensor input = view_bytes(std::make_shared<std::string>(std::move(own)));
    std::vector<at::Tensor> outputs;
    for (int r = 0; r < size(); ++r) outputs.push_back(at::zeros_like(input));
    group_->run({.kind = Collective::Kind::all_gather,
                 .inputs = {&input, 1},
                 .outputs = outputs,
                 .timeout = timeout});
    const auto theirs = [&](size_t r) {
      return std::string(static_cast<const char*>(outputs[r].const_data_ptr()));
    };
    for (size_t r = 1; r < outputs.size(); ++r) {
      if (theirs(r) == theirs(0)) continue;
      difference_ = fmt::format(
          "the ranks call different collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL compares them): "
          "rank 0 {}; rank {} {}",
          theirs(0), r, theirs(r));
      throw MismatchError(difference_);
    }
  }

  bool is_checking_ = true;
  int64_t collectives_ = 0;
  std::string difference_;  // seen once: the group is broken
};

}  // namespace

std::shared_ptr<ProcessGroup::Impl> make_checked(std::shared_ptr<ProcessGroup::Impl> group) {
  return std::make_shared<CheckedGroup>(std::move(group));
}

void stop_checking(ProcessGroup::Impl& group) {
  for (ProcessGroup::Impl* at = &group; at != nullptr;) {
    if (auto* const checked = dynamic_cast<CheckedGroup*>(at)) checked->stop();
    const auto* const around = dynamic_cast<ForwardingGroup*>(at);
    at = around != nullptr ? &around->inner() : nullptr;
  }
}

}  // namespace lockstep
