#include "bench/collectives/limit.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "bench/collectives/rank_loop.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::bench {
namespace {

using Floats = std::array<float*, kMostLimitRanks>;

template <int kRanks>
[[gnu::always_inline]] inline void add_all(const Floats& from, const Floats& to, int targets, size_t count) {
  for (size_t i = 0; i < count; i += 16) {
    float sum[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      sum[k] = from[0][i + static_cast<size_t>(k)];
      for (int r = 1; r < kRanks; ++r) {
        sum[k] += from[static_cast<size_t>(r)][i + static_cast<size_t>(k)];
      }
    }
    for (int t = 0; t < targets; ++t) std::memcpy(to[static_cast<size_t>(t)] + i, sum, sizeof sum);
  }
}

/// Every from[r][i] summed into every to[t][i]. count: a multiple of 16.
[[gnu::target_clones("avx512f", "avx2", "default")]] void oracle(const Floats& from, int ranks,
                                                                 const Floats& to, int targets,
                                                                 size_t count) {
  if (ranks == 2 && targets == 2) {
    float* __restrict const a = from[0];
    float* __restrict const b = from[1];
    for (size_t i = 0; i < count; ++i) {
      const float sum = a[i] + b[i];
      a[i] = sum;
      b[i] = sum;
    }
    return;
  }
  switch (ranks) {
    case 2:
      return add_all<2>(from, to, targets, count);
    case 3:
      return add_all<3>(from, to, targets, count);
    case 4:
      return add_all<4>(from, to, targets, count);
    case 8:
      return add_all<8>(from, to, targets, count);
    default:
      break;
  }
  float sum[1024];
  for (size_t begin = 0; begin < count; begin += 1024) {
    const size_t size = std::min<size_t>(1024, count - begin);
    std::memcpy(sum, from[0] + begin, size * sizeof(float));
    for (int r = 1; r < ranks; ++r) {
      const float* const more = from[static_cast<size_t>(r)] + begin;
      for (size_t i = 0; i < size; ++i) sum[i] += more[i];
    }
    for (int t = 0; t < targets; ++t)
      std::memcpy(to[static_cast<size_t>(t)] + begin, sum, size * sizeof(float));
  }
}

/// Reads and writes the same bytes once, as STREAM's scale in place.
[[gnu::target_clones("avx512f", "avx2", "default")]] void update(float* data, size_t count) {
  for (size_t i = 0; i < count; ++i) data[i] *= 1.25F;
}

class LimitEngine final : public Engine {
 public:
  LimitEngine(std::byte* memory, size_t stride, int ranks, int worker, int workers)
      : memory_(memory), stride_(stride), ranks_(ranks), worker_(worker), workers_(workers) {}

  void prepare(const Command& command) override {
    command_ = command;
    for (int r = worker_; r < ranks_; r += workers_) {
      const auto [in, out] = buffers_of(command.collective, command.bytes, ranks_, r);
      populate(input(r), in);
      populate(output(r), out);
    }
  }
  std::vector<Buffer> inputs() override {
    std::vector<Buffer> result;
    for (int r = worker_; r < ranks_; r += workers_) {
      result.push_back({input(r), buffers_of(command_.collective, command_.bytes, ranks_, r).input});
    }
    return result;
  }
  void call() override {
    for (int r = worker_; r < ranks_; r += workers_) do_work(r);
  }

 private:
  std::byte* input(int rank) const { return memory_ + static_cast<size_t>(rank) * 2 * stride_; }
  std::byte* output(int rank) const { return input(rank) + stride_; }

  static void populate(std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    ::madvise(data, rounded, MADV_POPULATE_WRITE);
    // Huge pages where the kernel gives them to whoever asks: the backend asks too.
    if (bytes >= (size_t{2} << 20)) ::madvise(data, rounded, MADV_COLLAPSE);
  }

  void do_work(int rank) const {
    const size_t part = command_.bytes / static_cast<size_t>(ranks_);
    const bool is_root = rank == 0;
    switch (command_.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        return reduce_slice(rank);
      case Collective::broadcast:
        if (!is_root) std::memcpy(input(rank), input(0), command_.bytes);
        return;
      case Collective::all_gather:
        for (int s = 0; s < ranks_; ++s)
          std::memcpy(output(rank) + static_cast<size_t>(s) * part, input(s), part);
        return;
      case Collective::reduce_scatter:
        return reduce_block(rank, part);
      case Collective::all_to_all:
        for (int s = 0; s < ranks_; ++s) {
          std::memcpy(output(rank) + static_cast<size_t>(s) * part,
                      input(s) + static_cast<size_t>(rank) * part, part);
        }
        return;
      case Collective::gather:
        std::memcpy(output(0) + static_cast<size_t>(rank) * part, input(rank), part);
        return;
      case Collective::scatter:
        std::memcpy(output(rank), input(0) + static_cast<size_t>(rank) * part, part);
        return;
      case Collective::send_recv:
        if (!is_root) return;
        std::memcpy(input(1), input(0), command_.bytes);
        std::memcpy(input(0), input(1), command_.bytes);
        return;
      case Collective::barrier:
        return;
    }
  }

  void reduce_slice(int rank) const {
    // In units of 64 bytes; what is less than one at the end is nobody's.
    const size_t lines = std::max<size_t>(command_.bytes / 64, 1);
    const size_t begin = lines * static_cast<size_t>(rank) / static_cast<size_t>(ranks_) * 16;
    const size_t end = lines * (static_cast<size_t>(rank) + 1) / static_cast<size_t>(ranks_) * 16;
    // blocked: so many floats that all buffers' parts stay in the first-level cache between load and store.
    const bool whole = std::strcmp(command_.algorithm, "oracle") == 0;
    const size_t step = whole ? std::max<size_t>(end - begin, 1) : 1024;
    if (std::strcmp(command_.algorithm, kUpdateVariant) == 0) {
      // As many streams as the others have.
      for (size_t at = begin; at < end; at += step) {
        for (int r = 0; r < ranks_; ++r) update(floats(r) + at, std::min(step, end - at));
      }
      return;
    }
    for (size_t at = begin; at < end; at += step) {
      add(at, std::min(step, end - at), command_.collective == Collective::reduce ? 1 : ranks_);
    }
  }
  void add(size_t at, size_t count, int targets) const {
    Floats buffers{};
    for (int r = 0; r < ranks_; ++r) buffers[static_cast<size_t>(r)] = floats(r) + at;
    oracle(buffers, ranks_, buffers, targets, count);
  }
  void reduce_block(int rank, size_t part) const {
    Floats from{}, to{};
    for (int r = 0; r < ranks_; ++r) {
      from[static_cast<size_t>(r)] = reinterpret_cast<float*>(input(r) + static_cast<size_t>(rank) * part);
    }
    to[0] = reinterpret_cast<float*>(output(rank));
    oracle(from, ranks_, to, 1, part / sizeof(float) / 16 * 16);
  }
  float* floats(int rank) const { return reinterpret_cast<float*>(input(rank)); }

  std::byte* memory_;
  size_t stride_;
  int ranks_, worker_, workers_;
  Command command_{};
};

}  // namespace

std::vector<std::string> limit_variants(Collective collective) {
  if (collective == Collective::barrier) return {};
  if (collective == Collective::all_reduce) return {"oracle", "blocked", kUpdateVariant};
  return {"oracle"};
}

std::vector<pid_t> start_limit_workers(uint32_t number, const std::string& socket_name, int ranks,
                                       int workers, size_t largest_bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  // Apart by an odd number of cache lines more, so that the ranks' buffers do not fall on the same sets.
  const size_t stride = (largest_bytes + kHuge) / kHuge * kHuge;
  const size_t total = 2 * stride * static_cast<size_t>(ranks);
  void* const memory =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("benchmark: cannot map memory to measure the machine's limit");
  std::vector<pid_t> children;
  for (int w = 0; w < workers; ++w) {
    const pid_t pid = ::fork();
    if (pid < 0) throw Error("benchmark: cannot start a process");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int code = run_main("lockstep bench", [&] {
        env::set(kSocketVariable, socket_name);
        LimitEngine engine(static_cast<std::byte*>(memory), stride, ranks, w, workers);
        serve(engine, number, w);
        return 0;
      });
      ::_exit(code);
    }
    children.push_back(pid);
  }
  ::munmap(memory, total);
  return children;
}

}  // namespace lockstep::bench
