// A rank that counts steps, each an all-reduce with the others, until there is a file `release`. It resumes from the file
// `state`, saves there now and then and if it is asked to stop, and writes what it does to `ledger`, for the test that starts it.
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/stop_requested.h"

namespace {

constexpr int kStepsBetweenSaves = 25;

struct State {
  int64_t step = 0;
  int64_t sum = 0;  ///< of the numbers of all steps
};

void save(const State& state) {
  std::ofstream("state.new") << state.step << ' ' << state.sum << '\n';
  std::filesystem::rename("state.new", "state");
}

/// One write a line: lines of other ranks and machines do not mix with it.
void tell(double when, const std::string& world, int rank, int size, const char* what, const State& state) {
  const int fd = ::open("ledger", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const std::string line =
      fmt::format("{:.3f} {} {} {} {} {} {}\n", when, world, rank, size, what, state.step, state.sum);
  if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw lockstep::Error("ledger");
  ::close(fd);
}

}  // namespace

int main() {
  return lockstep::run_main("soak_rank", [] {
    auto world = lockstep::init({.timeout = std::chrono::seconds(60)});
    lockstep::stop_requested(world);  // from here on a request is never missed
    const int rank = world.rank(), size = world.size();
    State state;
    // Rank 0 reads and names the world; the others learn both from it.
    auto begin = at::zeros({3}, at::kLong);
    if (rank == 0) {
      std::ifstream("state") >> state.step >> state.sum;
      begin[0] = state.step;
      begin[1] = state.sum;
      begin[2] = static_cast<int64_t>(std::random_device{}());
    }
    world.broadcast(begin);
    state = {begin[0].item<int64_t>(), begin[1].item<int64_t>()};
    const std::string name = fmt::format("{:x}", begin[2].item<int64_t>());
    tell(lockstep::monotonic_seconds(), name, rank, size, "from", state);
    if (const int signal = lockstep::stop_requested(world)) {
      tell(lockstep::monotonic_seconds(), name, rank, size, "saved", state);
      return lockstep::stop_exit_code(signal);
    }
    for (;;) {
      const bool is_released = rank == 0 && std::filesystem::exists("release");
      const auto shared = at::zeros({2}, at::kLong);
      shared[0] = state.step + 1;
      shared[1] = is_released ? 1 : 0;
      world.all_reduce(shared);
      const double when = lockstep::monotonic_seconds();
      const auto sum = shared[0].item<int64_t>();
      if (sum != size * (state.step + 1)) {
        throw lockstep::Error(fmt::format("step {}: {} ranks sum to {}", state.step + 1, size, sum));
      }
      state = {state.step + 1, state.sum + sum / size};
      tell(when, name, rank, size, "step", state);
      const bool ends = shared[1].item<int64_t>() != 0;
      const int signal = lockstep::stop_requested(world);
      if (rank == 0 && (ends || signal != 0 || state.step % kStepsBetweenSaves == 0)) save(state);
      if (ends || signal != 0) {
        tell(when, name, rank, size, ends ? "end" : "saved", state);
        return ends ? 0 : lockstep::stop_exit_code(signal);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}
