#include "lockstep/shm/group/operation_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/shm/paths/order.h"

namespace lockstep::shm {

OperationMemory::OperationMemory(std::shared_ptr<Membership> members, Arena& arena, PointToPoint& messages)
    : members_(std::move(members)), arena_(arena), messages_(messages) {
  const size_t offset = GroupLayout(static_cast<size_t>(members_->size())).windows;
  spare_window_ = members_->segment().group_area(members_->area()) + offset +
                  static_cast<size_t>(members_->rank()) * kWindowBytes;
}

const Operation& OperationMemory::find(Sequence sequence) const {
  if (is_posted(sequence)) return (*this)[sequence];
  return *std::next(queued_.begin(), static_cast<ptrdiff_t>(sequence - issued_ - 1));
}

bool OperationMemory::must_wait(const Operation& operation) const {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    const Operation& earlier = (*this)[s];
    if (!earlier.complete && must_follow(operation, earlier)) return true;
  }
  return false;
}

void OperationMemory::queue(const Operation& operation) {
  if (operation.what.memory == Memory::window) populate_spare_window();
  queued_.push_back(operation);
}

Operation& OperationMemory::take_first_queued() {
  Operation& place = (*this)[issued_ + 1];
  place = queued_.front();
  queued_.pop_front();
  set_issued(place.sequence);
  return place;
}

/// Two ranks whose arenas are full of windows of two groups, each waiting for the other's, would wait for ever. So the
/// oldest operation of every group has one that belongs to the group.
bool OperationMemory::find_window(Operation& operation) {
  operation.window = arena_.try_allocate_for_operation(std::min(operation.what.sent, kWindowBytes));
  if (operation.window != nullptr) return true;
  populate_spare_window();
  if (completed_ == issued_) operation.window = spare_window_;
  return operation.window != nullptr;
}

void OperationMemory::populate_spare_window() {
  if (is_spare_populated_) return;
  arena_.populate(spare_window_, kWindowBytes);
  is_spare_populated_ = true;
}

std::byte* OperationMemory::allocate(size_t bytes) {
  if (std::byte* const found = arena_.try_allocate(bytes)) return found;
  arena_.reclaim();
  return arena_.allocate(bytes);
}

void OperationMemory::release_window(Operation& operation) {
  std::byte* const window = std::exchange(operation.window, nullptr);
  if (window != nullptr && window != spare_window_) arena_.release(window);
}

void OperationMemory::give_up() {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& operation = (*this)[s];
    if (operation.complete) continue;
    std::byte* const window = std::exchange(operation.window, nullptr);
    if (window != nullptr && window != spare_window_) arena_.release_later(window, unused_by_others());
    if (operation.what.memory == Memory::arena) {
      arena_.keep(operation.data, operation.what.sent, unused_by_others());
    }
  }
  queued_.clear();
  for (std::byte* scratch : messages_.take_scratch()) arena_.release_later(scratch, unused_by_others());
}

std::function<bool()> OperationMemory::unused_by_others() const {
  return [members = members_] { return members->all_others_have_stopped(); };
}

}  // namespace lockstep::shm
