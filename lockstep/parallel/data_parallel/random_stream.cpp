#include "lockstep/parallel/data_parallel/random_stream.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <utility>

#include "lockstep/base/random_key.h"

namespace lockstep {
namespace {
thread_local std::optional<at::Generator> current;
}  // namespace

const std::optional<at::Generator>& replica_generator() { return current; }

ReplicaGeneratorGuard::ReplicaGeneratorGuard(at::Generator generator)
    : previous_(std::exchange(current, std::move(generator))) {}
ReplicaGeneratorGuard::~ReplicaGeneratorGuard() { current = std::move(previous_); }

uint64_t draw_replica_key() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

uint64_t replica_seed(uint64_t key, int replica) { return random_key({key, static_cast<uint64_t>(replica)}); }

}  // namespace lockstep
