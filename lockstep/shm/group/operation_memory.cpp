#include "lockstep/shm/group/operation_memory.h"

#include <utility>

namespace lockstep::shm {

OperationMemory::Sequence OperationMemory::oldest_with_window() const {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    if ((*this)[s].window != nullptr) return s;
  }
  return 0;
}

std::byte* OperationMemory::try_allocate(size_t bytes) {
  if (std::byte* const found = arena_.try_allocate(bytes)) return found;
  messages_.release_received();
  return arena_.try_allocate(bytes);
}

std::byte* OperationMemory::allocate(size_t bytes) {
  if (std::byte* const found = try_allocate(bytes)) return found;
  return arena_.allocate(bytes);
}

void OperationMemory::release_window(Operation& operation) {
  if (operation.window != nullptr) arena_.release(std::exchange(operation.window, nullptr));
}

void OperationMemory::give_up() {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& operation = (*this)[s];
    if (operation.complete) continue;
    if (operation.window != nullptr) {
      arena_.release_later(std::exchange(operation.window, nullptr), unused_by_others());
    }
    if (operation.what.memory == Memory::arena) {
      arena_.keep(operation.data, operation.what.sent, unused_by_others());
    }
  }
  for (std::byte* scratch : messages_.take_scratch()) arena_.release_later(scratch, unused_by_others());
}

std::function<bool()> OperationMemory::unused_by_others() const {
  return [members = members_] { return members->all_others_have_stopped(); };
}

}  // namespace lockstep::shm
