#include "lockstep/recovery/shard_vault.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/setup_log.h"

namespace lockstep::detail {
namespace {

/// Addresses, not memory.
constexpr size_t kSlotBytes = ShardVault::kMostBytes;
constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

/// At the start of a slot; then the description, and the tensors.
struct ShardVault::Slot {
  std::atomic<int64_t> written;  // release: steps + 1; 0: nothing whole
  uint64_t described;            // bytes of the description
};

ShardVault::ShardVault(shm::SetupLog& log, size_t number) : log_(log), number_(number) {}

ShardVault::Slot& ShardVault::slot(size_t which) const {
  return *reinterpret_cast<Slot*>(
      log_.memory_behind((number_ * 2 + which) * kSlotBytes, aligned(sizeof(Slot))));
}

void ShardVault::write(int64_t steps, const StateDict& state) {
  const int64_t first = slot(0).written.load(std::memory_order_acquire);
  const int64_t second = slot(1).written.load(std::memory_order_acquire);
  // What a step wrote that is repeated now; otherwise the older one.
  const int64_t now = steps + 1;
  write_to(first >= now ? 0 : second >= now ? 1 : first <= second ? 0 : 1, steps, state);
}

void ShardVault::write_beside(int64_t kept, int64_t steps, const StateDict& state) {
  write_to(slot(0).written.load(std::memory_order_acquire) == kept + 1 ? 1 : 0, steps, state);
}

bool ShardVault::has(int64_t steps) const {
  if (steps < 0) return false;
  return slot(0).written.load(std::memory_order_acquire) == steps + 1 ||
         slot(1).written.load(std::memory_order_acquire) == steps + 1;
}

void ShardVault::write_to(size_t which, int64_t steps, const StateDict& state) {
  nlohmann::json described = {{"scalars", state.scalars_to_json()}, {"tensors", nlohmann::json::array()}};
  std::vector<at::Tensor> tensors;
  size_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) {
    tensors.push_back(tensor.detach().contiguous());
    described["tensors"].push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
    bytes += aligned(tensor.nbytes());
  }
  const std::string text = described.dump();
  bytes += aligned(sizeof(Slot)) + aligned(text.size());
  if (bytes > kSlotBytes) {
    throw Error(fmt::format("Recovery: what a rank alone has is {} bytes; at most {} can be kept", bytes,
                            kSlotBytes));
  }
  std::byte* to = log_.memory_behind((number_ * 2 + which) * kSlotBytes, bytes);
  Slot& taken = *reinterpret_cast<Slot*>(to);
  // Nothing of what follows may come before that: this process can die at any point.
  taken.written.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  taken.described = text.size();
  to += aligned(sizeof(Slot));
  std::memcpy(to, text.data(), text.size());
  to += aligned(text.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    to += aligned(tensor.nbytes());
  }
  taken.written.store(steps + 1, std::memory_order_release);
}

StateDict ShardVault::read(int64_t steps) const {
  const Slot* newest = nullptr;
  int64_t of_newest = 0;
  for (size_t which = 0; which < 2; ++which) {
    const int64_t written = slot(which).written.load(std::memory_order_acquire);
    if (written <= of_newest || written > steps + 1) continue;
    newest = &slot(which);
    of_newest = written;
  }
  if (newest == nullptr) {
    throw Error(fmt::format(
        "Recovery: the part of a divided optimizer that a rank had after step {} is not there", steps));
  }
  const std::byte* from = reinterpret_cast<const std::byte*>(newest) + aligned(sizeof(Slot));
  const auto described =
      nlohmann::json::parse(std::string(reinterpret_cast<const char*>(from), newest->described));
  from += aligned(newest->described);
  StateDict state;
  state.scalars = StateDict::scalars_from_json(described.at("scalars").get<std::string>());
  for (const auto& tensor : described.at("tensors")) {
    at::Tensor values = at::empty(tensor.at(2).get<std::vector<int64_t>>(),
                                  at::TensorOptions(static_cast<at::ScalarType>(tensor.at(1).get<int>())));
    if (values.nbytes() > 0) std::memcpy(values.mutable_data_ptr(), from, values.nbytes());
    from += aligned(values.nbytes());
    state.tensors[tensor.at(0).get<std::string>()] = std::move(values);
  }
  return state;
}

}  // namespace lockstep::detail
