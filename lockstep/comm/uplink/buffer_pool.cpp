#include "lockstep/comm/uplink/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::uplink {
namespace {

constexpr size_t kLeastBytes = 8192;
/// What lies unused: what two pairs of machines have in flight.
constexpr size_t kMostKept = size_t{16} << 20;

}  // namespace

struct BufferPool::Shelves {
  using Memory = std::unique_ptr<std::byte[]>;
  base::Mutex mutex;
  std::map<size_t, std::vector<Memory>> by_bytes LOCKSTEP_GUARDED_BY(mutex);
  size_t kept LOCKSTEP_GUARDED_BY(mutex) = 0;

  Memory take(size_t bytes) {
    {
      const base::LockGuard lock(mutex);
      auto& shelf = by_bytes[bytes];
      if (!shelf.empty()) {
        Memory memory = std::move(shelf.back());
        shelf.pop_back();
        kept -= bytes;
        return memory;
      }
    }
    return Memory(new std::byte[bytes]);
  }
  void put(Memory memory, size_t bytes) {
    const base::LockGuard lock(mutex);
    if (kept + bytes > kMostKept) return;
    by_bytes[bytes].push_back(std::move(memory));
    kept += bytes;
  }
};

BufferPool::BufferPool() : shelves_(std::make_shared<Shelves>()) {}

Buffer BufferPool::take(size_t bytes) {
  const size_t room = std::bit_ceil(std::max(bytes, kLeastBytes));
  std::byte* const memory = shelves_->take(room).release();
  return {
      std::shared_ptr<std::byte[]>(
          memory, [shelves = shelves_, room](std::byte* back) { shelves->put(Shelves::Memory(back), room); }),
      bytes};
}

}  // namespace lockstep::uplink
