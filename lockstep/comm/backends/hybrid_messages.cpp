#include "lockstep/comm/backends/hybrid_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/backends/c10d_group.h"
#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/backends/watched_end.h"
#include "lockstep/shm/process.h"

namespace lockstep::backends {
namespace {

using uplink::Buffer;
using uplink::Transfer;
using Clock = std::chrono::steady_clock;
using Milliseconds = HybridMessages::Milliseconds;
using OptionalWait = std::optional<Milliseconds>;

constexpr int kAnyRank = -1;
/// Headers have this tag; what follows one has another, which the header's number gives it. The lower half of the tags is
/// LibTorch's: its monitoredBarrier sends by the same engine, and counts from 0.
constexpr int kHeaderTag = 1 << 30;
constexpr uint64_t kTagsOfRests = (uint64_t{1} << 30) - 1;
constexpr size_t kHeaderRoom = 4096;
/// Messages that nobody has asked for, and of which this process takes the headers all the same.
constexpr size_t kMostUnasked = 1024;
/// How often a wait looks whether the group has failed elsewhere.
constexpr Milliseconds kLook{50};
/// How often a receive that may also come through shared memory looks there: often at first.
constexpr std::chrono::microseconds kLookHere{1000}, kLookHereAtFirst{50};
constexpr Milliseconds kAtFirst{5};

struct MessageHeader {
  uint64_t tag, bytes, number;
  std::array<std::byte, kHeaderRoom - 24> first;  ///< bytes of the message
};
static_assert(sizeof(MessageHeader) == kHeaderRoom);

int find_tag_of_rest(const MessageHeader& header) {
  return kHeaderTag + 1 + static_cast<int>(header.number % kTagsOfRests);
}

/// Memory of a tensor, which the buffer keeps.
Buffer make_buffer_of(const at::Tensor& tensor, size_t offset) {
  auto* const memory = static_cast<std::byte*>(tensor.mutable_data_ptr()) + offset;
  return {std::shared_ptr<std::byte[]>(memory, [tensor](std::byte* /*the tensor's*/) {}),
          tensor.nbytes() - offset};
}

/// A transfer of Gloo's that can be waited for in parts.
class WatchedTransfer {
 public:
  /// `what`: for the error of a message that takes longer than `timeout`, to or from `peer`.
  WatchedTransfer(std::shared_ptr<Transfer> transfer, Milliseconds timeout, int peer, std::string what)
      : transfer_(std::move(transfer)), timeout_(timeout), peer_(peer), what_(std::move(what)) {}

  /// Blocks until it has ended. Throws TimeoutError after `left`, which is what is left of its time.
  void wait(Milliseconds left) {
    // Gloo takes 0 for no timeout.
    if (!watched_) return wait_for(std::max(left, Milliseconds(1)));
    if (!watched_->ends_within(left)) throw_late();
  }
  bool ends_within(Milliseconds longest) {
    if (!watched_) watched_.emplace([own = *this] { own.wait_for(own.timeout_); });
    return watched_->ends_within(longest);
  }

 private:
  [[noreturn]] void throw_late() const {
    throw TimeoutError(fmt::format("{} has not ended within {} ms", what_, timeout_.count()), {peer_});
  }
  void wait_for(Milliseconds longest) const {
    try {
      transfer_->wait(longest);
    } catch (const TimeoutError&) {
      throw_late();
    }
  }

  std::shared_ptr<Transfer> transfer_;
  Milliseconds timeout_;
  int peer_;
  std::string what_;
  std::optional<WatchedEnd> watched_{};  // none: nobody has asked yet without waiting for the end
};

}  // namespace

/// A receive that is not known to come through shared memory.
struct HybridMessages::Receive {
  int source = kAnyRank;  // wanted
  int tag = 0;
  at::Tensor tensor{};
  Milliseconds timeout{};
  bool may_come_from_here = false;
  // Once a message has been found for it, which never changes then:
  bool is_matched = false;
  int sender = kAnyRank;
  std::string mismatch{};
  std::optional<WatchedTransfer> rest{};  // what the header had no room for
  WorkPtr here{};                         // it comes through shared memory

  std::string describe() const {
    const std::string from = source == kAnyRank ? "any rank" : fmt::format("rank {}", source);
    return fmt::format("recv from {} ({} bytes, tag {})", from, tensor.nbytes(), tag);
  }
};

namespace {

Milliseconds find_left(Clock::time_point end) {
  return std::max(std::chrono::ceil<Milliseconds>(end - Clock::now()), Milliseconds(0));
}

/// What messages of both kinds have in common: a failure is that of the group.
class HybridMessageWork : public Work {
 public:
  explicit HybridMessageWork(std::shared_ptr<HybridState> state) : state_(std::move(state)) {}

 protected:
  template <class Call>
  void guarded(const Call& call) {
    process_.check(state_->rank());
    try {
      call();
    } catch (const ValueError&) {
      throw;
    } catch (...) {
      std::rethrow_exception(state_->health().fail(std::current_exception()));
    }
  }
  /// Waits for `work`, of shared memory; true once it has ended.
  bool ends_here(Work& work, OptionalWait longest) {
    bool has_ended = false;
    guarded([&] {
      state_->health().translated([&] {
        try {
          work.wait(longest);
          has_ended = true;
        } catch (const TimeoutError&) {
          if (!longest || work.exception() != nullptr) throw;
        }
      });
    });
    return has_ended;
  }
  bool has_ended_here(Work& work) {
    bool has_ended = false;
    guarded([&] {
      state_->health().translated([&] {
        has_ended = work.is_completed();
        if (work.exception() != nullptr) std::rethrow_exception(work.exception());
      });
    });
    return has_ended;
  }
  /// Not the group's: the message goes on.
  [[noreturn]] static void throw_too_early(const std::string& what, Milliseconds waited) {
    throw TimeoutError(fmt::format("{} has not ended within {} ms", what, waited.count()));
  }
  std::shared_ptr<HybridState> state_;

 private:
  shm::RankProcess process_;
};

/// Between ranks of this machine, or of a rank to itself.
class MessageHere final : public HybridMessageWork {
 public:
  MessageHere(std::shared_ptr<HybridState> state, std::shared_ptr<Work> work)
      : HybridMessageWork(std::move(state)), work_(std::move(work)) {}
  int source_rank() const override {
    const int place = work_->source_rank();
    return place < 0 ? kAnyRank : state_->local_ranks()[static_cast<size_t>(place)];
  }

 private:
  void do_wait(OptionalWait timeout) override {
    if (!ends_here(*work_, timeout)) throw_too_early("the message", *timeout);
  }
  bool poll() override { return has_ended_here(*work_); }
  std::shared_ptr<Work> work_;
};

class SendAway final : public HybridMessageWork {
 public:
  SendAway(std::shared_ptr<HybridState> state, std::vector<WatchedTransfer> parts, Milliseconds timeout,
           std::string what)
      : HybridMessageWork(std::move(state)),
        parts_(std::move(parts)),
        timeout_(timeout),
        what_(std::move(what)) {}

 private:
  void do_wait(OptionalWait timeout) override {
    const auto end = Clock::now() + timeout.value_or(timeout_);  // of all parts
    for (; ended_ < parts_.size(); ++ended_) {
      if (!timeout) {
        guarded([&] { parts_[ended_].wait(find_left(end)); });
        continue;
      }
      bool has_ended = false;
      guarded([&] { has_ended = parts_[ended_].ends_within(find_left(end)); });
      if (!has_ended) throw_too_early(what_, *timeout);
    }
  }
  bool poll() override {
    for (; ended_ < parts_.size(); ++ended_) {
      bool has_ended = false;
      guarded([&] { has_ended = parts_[ended_].ends_within(Milliseconds(0)); });
      if (!has_ended) return false;
    }
    return true;
  }
  std::vector<WatchedTransfer> parts_;
  Milliseconds timeout_;
  std::string what_;
  size_t ended_ = 0;  // of them
};

class ReceiveWork final : public HybridMessageWork {
 public:
  ReceiveWork(std::shared_ptr<HybridState> state, HybridMessages& messages,
              std::shared_ptr<HybridMessages::Receive> receive)
      : HybridMessageWork(std::move(state)), messages_(messages), receive_(std::move(receive)) {}
  int source_rank() const override { return has_ended_ ? receive_->sender : kAnyRank; }

 private:
  void do_wait(OptionalWait timeout) override {
    const auto end = Clock::now() + timeout.value_or(receive_->timeout);  // of all that it waits for
    // Without a timeout of the caller's it is the operation's that is over, and with it the group's.
    const auto throw_late = [&] {
      if (timeout) throw_too_early(receive_->describe(), *timeout);
      messages_.forget(*receive_);
      const int late = receive_->is_matched ? receive_->sender : receive_->source;
      const auto error = std::make_exception_ptr(TimeoutError(
          fmt::format("{} has not ended within {} ms", receive_->describe(), receive_->timeout.count()),
          late == kAnyRank ? std::vector<int>() : std::vector<int>{late}));
      std::rethrow_exception(state_->health().fail(error));
    };
    while (!is_matched_within(std::min(find_left(end), kLook))) {
      if (find_left(end) == Milliseconds(0)) throw_late();
    }
    check_match();
    if (receive_->here && !ends_here(*receive_->here, find_left(end))) throw_late();
    if (receive_->rest) {
      bool has_ended = !timeout;
      guarded([&] {
        if (timeout) {
          has_ended = receive_->rest->ends_within(find_left(end));
        } else {
          receive_->rest->wait(find_left(end));
        }
      });
      if (!has_ended) throw_late();
    }
    has_ended_ = true;
  }
  bool poll() override {
    if (!is_matched_within(Milliseconds(0))) return false;
    check_match();
    if (receive_->here && !has_ended_here(*receive_->here)) return false;
    if (receive_->rest) {
      bool has_ended = false;
      guarded([&] { has_ended = receive_->rest->ends_within(Milliseconds(0)); });
      if (!has_ended) return false;
    }
    has_ended_ = true;
    return true;
  }
  bool is_matched_within(Milliseconds longest) {
    bool is_matched = false;
    guarded([&] {
      state_->health().translated([&] { is_matched = messages_.wait_for_match(*receive_, longest); });
      if (!is_matched) state_->health().look_for_failure();
    });
    return is_matched;
  }
  void check_match() {
    if (receive_->mismatch.empty()) return;
    guarded([&] { throw MismatchError(receive_->mismatch); });
  }

  HybridMessages& messages_;
  std::shared_ptr<HybridMessages::Receive> receive_;
  bool has_ended_ = false;
};

}  // namespace

HybridMessages::HybridMessages(int rank, const uplink::SumPlan& plan, std::shared_ptr<Impl> local,
                               std::shared_ptr<Impl> flat)
    : rank_(rank), plan_(plan), local_(std::move(local)), flat_(std::move(flat)) {}

HybridMessages::~HybridMessages() { renew(); }

int HybridMessages::place_here(int rank) const {
  const std::vector<int>& ranks = plan_.ranks_of(plan_.machine_of(rank_));
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::shared_ptr<Work> HybridMessages::start(const std::shared_ptr<HybridState>& state,
                                            const Collective& message) {
  if (message.kind == Collective::Kind::recv) return receive(state, message);
  return is_here(message.root) ? start_here(state, message) : send_away(state, message);
}

std::shared_ptr<Work> HybridMessages::start_here(const std::shared_ptr<HybridState>& state,
                                                 Collective message) const {
  message.root = place_here(message.root);
  WorkPtr work;
  state->health().translated([&] { work = local_->start(message); });
  return std::make_shared<MessageHere>(state, std::move(work));
}

void HybridMessages::open() {
  if (is_stopped_) throw CommError("the group has stopped");
  if (link_) return;
  share_engine(*flat_);
  const auto link = std::make_shared<uplink::GlooTransfers>(flat_->backend());
  listener_ = std::thread([this, link] { listen(link); });  // it may throw
  link_ = link;
}

void HybridMessages::listen_early() {
  const base::LockGuard lock(mutex_);
  if (!is_stopped_) open();
}

std::shared_ptr<Work> HybridMessages::send_away(const std::shared_ptr<HybridState>& state,
                                                const Collective& message) {
  const at::Tensor& tensor = message.inputs[0];
  const std::string what =
      fmt::format("send to rank {} ({} bytes, tag {})", message.root, tensor.nbytes(), message.tag);
  const Buffer room = uplink::make_buffer(kHeaderRoom);
  MessageHeader header{
      .tag = static_cast<uint64_t>(message.tag), .bytes = tensor.nbytes(), .number = 0, .first = {}};
  const size_t first = std::min(tensor.nbytes(), header.first.size());
  if (first > 0) std::memcpy(header.first.data(), tensor.const_data_ptr(), first);
  std::vector<WatchedTransfer> parts;
  bool is_first = false;
  {
    const base::LockGuard lock(mutex_);
    open();
    is_first = !sent_.contains(message.root);
    header.number = sent_[message.root]++;
    std::memcpy(room.data(), &header, sizeof header);
    parts.emplace_back(link_->send(message.root, kHeaderTag, room), message.timeout, message.root, what);
    if (tensor.nbytes() > first) {
      parts.emplace_back(link_->send(message.root, find_tag_of_rest(header), make_buffer_of(tensor, first)),
                         message.timeout, message.root, what);
    }
  }
  if (is_first) state->health().tell_message(message.root);
  return std::make_shared<SendAway>(state, std::move(parts), message.timeout, what);
}

std::shared_ptr<Work> HybridMessages::receive(const std::shared_ptr<HybridState>& state,
                                              const Collective& message) {
  const bool is_from_here = message.root != kAnyRank && is_here(message.root);
  auto receive =
      std::make_shared<Receive>(Receive{.source = message.root,
                                        .tag = message.tag,
                                        .tensor = message.outputs[0],
                                        .timeout = message.timeout,
                                        .may_come_from_here = message.root == kAnyRank || is_from_here});
  {
    const base::LockGuard lock(mutex_);
    // Those that were started before have the first choice: from any rank, or from this one behind such a one.
    const auto has_priority = [&](const auto& other) {
      return other->tag == message.tag && (other->source == kAnyRank || other->source == message.root);
    };
    if (!is_from_here || std::any_of(waiting_.begin(), waiting_.end(), has_priority)) {
      open();
      waiting_.push_back(receive);
      match_all();
      changed_.notify_all();
      return std::make_shared<ReceiveWork>(state, *this, std::move(receive));
    }
  }
  return start_here(state, message);
}

/// A thread's: until the group stops.
void HybridMessages::listen(const std::shared_ptr<uplink::GlooTransfers>& link) {
  try {
    while (true) {
      {
        base::UniqueLock lock(mutex_);
        changed_.wait(lock, [this]() LOCKSTEP_REQUIRES(mutex_) {
          return is_stopped_ || arrived_.size() < kMostUnasked || !waiting_.empty();
        });
        if (is_stopped_) return;
      }
      const Buffer header = uplink::make_buffer(kHeaderRoom);
      const auto transfer = link->recv_from_any(kHeaderTag, header);
      transfer->wait(kLongestTimeout);
      const base::LockGuard lock(mutex_);
      if (is_stopped_) return;
      arrived_.push_back({transfer->sender(), header});
      match_all();
      changed_.notify_all();
    }
  } catch (const std::exception&) {
    // The group stops, and may do so when the process ends; or a connection is lost: control connections tell why, and waits
    // look for that.
  }
}

void HybridMessages::match() {
  const base::LockGuard lock(mutex_);
  match_all();
}

void HybridMessages::match_all() {
  for (auto receive = waiting_.begin(); receive != waiting_.end();) {
    receive = match(**receive) ? waiting_.erase(receive) : std::next(receive);
  }
}

bool HybridMessages::match(Receive& receive) {
  for (auto arrived = arrived_.begin(); arrived != arrived_.end(); ++arrived) {
    const bool is_sender = receive.source == kAnyRank || receive.source == arrived->source;
    if (!is_sender || reinterpret_cast<const MessageHeader*>(arrived->header.data())->tag !=
                          static_cast<uint64_t>(receive.tag))
      continue;
    take(receive, *arrived);
    arrived_.erase(arrived);
    return true;
  }
  if (!receive.may_come_from_here || local_->is_interrupted()) return false;
  const int wanted = receive.source == kAnyRank ? kAnyRank : place_here(receive.source);
  const int place = find_sender(*local_, wanted, receive.tag);
  if (place < 0) return false;
  receive.here = local_->start({.kind = Collective::Kind::recv,
                                .outputs = {&receive.tensor, 1},
                                .root = place,
                                .tag = receive.tag,
                                .timeout = receive.timeout});
  receive.sender = plan_.ranks_of(plan_.machine_of(rank_))[static_cast<size_t>(place)];
  receive.is_matched = true;
  return true;
}

void HybridMessages::take(Receive& receive, const Arrived& arrived) {
  const auto& header = *reinterpret_cast<const MessageHeader*>(arrived.header.data());
  receive.is_matched = true;
  receive.sender = arrived.source;
  if (header.bytes != receive.tensor.nbytes()) {
    receive.mismatch = fmt::format("recv of {} bytes (tag {}) met a message of {} bytes from rank {}",
                                   receive.tensor.nbytes(), receive.tag, header.bytes, arrived.source);
    return;
  }
  const size_t first = std::min<size_t>(header.bytes, header.first.size());
  if (first > 0) std::memcpy(receive.tensor.mutable_data_ptr(), header.first.data(), first);
  if (header.bytes == first) return;
  receive.rest.emplace(
      link_->recv(arrived.source, find_tag_of_rest(header), make_buffer_of(receive.tensor, first)),
      receive.timeout, arrived.source,
      fmt::format("recv from rank {} ({} bytes, tag {})", arrived.source, header.bytes, receive.tag));
}

bool HybridMessages::wait_for_match(const Receive& receive, Milliseconds longest) {
  base::UniqueLock lock(mutex_);
  const auto begin = Clock::now(), end = begin + longest;
  while (!receive.is_matched) {
    match_all();
    if (receive.is_matched) break;
    const auto now = Clock::now();
    if (is_stopped_ || now >= end) return false;
    const auto left = std::chrono::ceil<std::chrono::microseconds>(end - now);
    const auto pause = now < begin + kAtFirst ? kLookHereAtFirst : kLookHere;
    changed_.wait_for(lock, receive.may_come_from_here ? std::min(left, pause) : left);
  }
  return true;
}

void HybridMessages::forget(const Receive& receive) {
  const base::LockGuard lock(mutex_);
  std::erase_if(waiting_, [&](const auto& each) { return each.get() == &receive; });
}

void HybridMessages::stop() noexcept {
  try {
    const base::LockGuard lock(mutex_);
    is_stopped_ = true;
    if (link_) link_->stop();
    changed_.notify_all();
  } catch (const std::exception& error) {
    log::debug(std::string("messages between machines that are to end: ") + error.what());
  }
}

void HybridMessages::renew() {
  stop();
  std::thread listener;
  {
    const base::LockGuard lock(mutex_);
    listener = std::move(listener_);
  }
  if (listener.joinable()) listener.join();
  const base::LockGuard lock(mutex_);
  link_.reset();
  sent_.clear();
  arrived_.clear();
  waiting_.clear();
  is_stopped_ = false;
}

}  // namespace lockstep::backends
