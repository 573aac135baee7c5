#include "lockstep/comm/joining/goodbye.h"

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/job/stop_signals.h"

namespace lockstep {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLongestWait = 5s;
constexpr std::chrono::milliseconds kLongestPause = 64ms;
constexpr int kFirstSignal = 128;
const char* const kCome = "lockstep/goodbye/come";
const char* const kSeen = "lockstep/goodbye/seen";

struct Party {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0, size = 1;
};

/// Never destroyed: it is used at exit.
Party& party() {
  static auto* const one = new Party();
  return *one;
}

/// A failed job's ranks do not wait for each other. One that a signal has ended has ended in order.
bool is_failure(int exit_code) {
  return exit_code != 0 && exit_code != job::kResumeCode && exit_code < kFirstSignal;
}

}  // namespace

void expect_goodbye(c10::intrusive_ptr<c10d::Store> store, int rank, int size) {
  party() = {std::move(store), rank, size};
}

void say_goodbye(int exit_code) {
  const Party ended = std::exchange(party(), {});
  if (!ended.store || ended.size == 1 || is_failure(exit_code)) return;
  const auto deadline = steady_clock::now() + kLongestWait;
  // Not Store::wait(), which prints warnings at its deadline.
  const auto wait_for_all = [&](const char* counter) {
    auto pause = 1ms;
    while (ended.store->add(counter, 0) < ended.size && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  };
  // A store that is gone with its rank prints a stack trace; who comes too late has nothing to tell.
  FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
  try {
    ended.store->add(kCome, 1);
    wait_for_all(kCome);
    ended.store->add(kSeen, 1);
    if (ended.rank == 0)
      wait_for_all(kSeen);  // it may serve the store: the others are to have their answers first
  } catch (const std::exception& error) {
    log::debug(std::string("not all ranks have ended: ") + error.what());
  }
}

}  // namespace lockstep
