#include "bench/collectives/rank_loop.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Memory of the benchmark that the ranks of one engine share: how they start together. Independent of every
/// engine, so that none is measured with the help of its own barrier.
struct StartLine {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> round;
  std::atomic<int64_t> start;  ///< of the next call, by the steady clock, which all processes share
};

class Starter {
 public:
  Starter(int fd, int ranks, bool crowded) : ranks_(static_cast<uint32_t>(ranks)), crowded_(crowded) {
    void* const memory = ::mmap(nullptr, sizeof(StartLine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) throw Error("benchmark: cannot map the start line");
    line_ = static_cast<StartLine*>(memory);
  }
  Starter(const Starter&) = delete;
  ~Starter() { ::munmap(line_, sizeof(StartLine)); }

  /// Blocks until all ranks are here; returns the moment at which this one goes on. Ranks with a core each
  /// leave at an agreed moment, since a plain barrier lets its last rank go first.
  Clock::time_point together() {
    const uint32_t round = line_->round.load(std::memory_order_relaxed);
    if (line_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
      line_->arrived.store(0, std::memory_order_relaxed);
      line_->start.store((Clock::now() + kLead).time_since_epoch().count(), std::memory_order_relaxed);
      line_->round.store(round + 1, std::memory_order_release);
    }
    while (line_->round.load(std::memory_order_acquire) == round) relax();
    auto now = Clock::now();
    if (crowded_) return now;
    const Clock::time_point start(Clock::duration(line_->start.load(std::memory_order_relaxed)));
    while (now < start) now = Clock::now();
    return now;
  }

 private:
  static constexpr std::chrono::nanoseconds kLead{1500};
  void relax() const {
    if (crowded_) {
      ::sched_yield();
      return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  StartLine* line_;
  uint32_t ranks_;
  bool crowded_;
};

/// Ordinary stores, as a backward pass leaves a gradient: memset may go around the caches.
void rewrite(const std::vector<Engine::Buffer>& buffers) {
  for (const auto& buffer : buffers) {
    auto* const words = static_cast<uint32_t*>(buffer.data);
    const size_t count = buffer.bytes / sizeof(uint32_t);
    // About 0.01 in fp32 and bf16, 1 in fp16, and not one pattern, which a compiler would turn into memset.
    for (size_t i = 0; i < count; ++i) words[i] = 0x3c3c3c3cU ^ (static_cast<uint32_t>(i) & 1U);
  }
}

std::vector<double> measure(Engine& engine, const Command& command, Starter& starter) {
  engine.prepare(command);
  const auto inputs = engine.inputs();
  std::vector<double> seconds;
  for (uint32_t i = 0; i < command.warm_up + command.samples; ++i) {
    rewrite(inputs);
    const auto start = starter.together();
    for (uint32_t call = 0; call < command.burst; ++call) {
      if (call > 0) rewrite(inputs);
      engine.call();
    }
    const std::chrono::duration<double> taken = Clock::now() - start;
    if (i >= command.warm_up) seconds.push_back(taken.count() / command.burst);
  }
  return seconds;
}

/// Binds the calling thread to the n-th of the cores that it may use.
void bind_to_core(int n) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || n-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    ::sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

}  // namespace

void serve(Engine& engine, uint32_t number, int rank) {
  const auto name = env::get(kSocketVariable);
  if (!name) throw ValueError("this program is started by `lockstep bench`");
  const UniqueFd socket = connect_to(*name);
  const Hello hello{number, rank};
  send_bytes(socket.get(), &hello, sizeof hello);
  Welcome welcome{};
  receive_bytes(socket.get(), &welcome, sizeof welcome);
  const UniqueFd memory = receive_descriptor(socket.get());
  if (welcome.core >= 0) bind_to_core(welcome.core);
  Starter starter(memory.get(), welcome.ranks, welcome.crowded != 0);
  while (const auto command = receive_command(socket.get())) {
    Answer answer;
    try {
      answer.seconds = measure(engine, *command, starter);
    } catch (const std::exception& error) {
      answer.error = error.what();
      answer.error.resize(std::min(answer.error.size(), answer.error.find('\n')));
    }
    send_answer(socket.get(), answer);
  }
}

}  // namespace lockstep::bench
