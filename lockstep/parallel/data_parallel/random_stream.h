// The random numbers of a replica.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace lockstep {

/// What dropout in lockstep::ops draws from on this thread: a replica's own generator inside a forward of
/// DataParallel; empty elsewhere, which means torch's default generator. The default generator is one per
/// process: replicas that draw from it, as torch::nn::Dropout does, get their numbers in the order in which
/// their threads happen to ask.
const std::optional<at::Generator>& replica_generator();

/// replica_generator() of this thread while it lives.
class ReplicaGeneratorGuard {
 public:
  /// Sets it, for the calling thread.
  explicit ReplicaGeneratorGuard(at::Generator generator);
  /// Sets the one from before again; on the same thread.
  ~ReplicaGeneratorGuard();
  ReplicaGeneratorGuard(const ReplicaGeneratorGuard&) = delete;
  ReplicaGeneratorGuard& operator=(const ReplicaGeneratorGuard&) = delete;

 private:
  std::optional<at::Generator> previous_;
};

/// A number from torch's default generator. A forward of DataParallel in training mode draws one, and seeds
/// replica r's generator with replica_seed(key, r): at::manual_seed() before a step fixes all replicas'
/// numbers. Thread-safe.
uint64_t draw_replica_key();
/// The seed of replica `replica`'s generator: random_key({key, replica}). Thread-safe.
uint64_t replica_seed(uint64_t key, int replica);

}  // namespace lockstep
