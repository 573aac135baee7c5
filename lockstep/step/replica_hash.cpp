#include "lockstep/step/replica_hash.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::detail {

uint64_t hash_of_memory(const void* data, size_t bytes) {
  constexpr size_t piece = 1 << 20;
  constexpr int64_t pieces_per_thread = 4;
  if (bytes <= piece) return XXH3_64bits(data, bytes);
  std::vector<uint64_t> hashes((bytes + piece - 1) / piece);
  at::parallel_for(
      0, static_cast<int64_t>(hashes.size()), pieces_per_thread, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          hashes[i] =
              XXH3_64bits(static_cast<const char*>(data) + i * piece, std::min(piece, bytes - i * piece));
        }
      });
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
}

uint64_t hash_of_item(std::string_view name, std::string_view description, uint64_t contents) {
  const uint64_t parts[] = {XXH3_64bits(name.data(), name.size()),
                            XXH3_64bits(description.data(), description.size()), contents};
  return XXH3_64bits(parts, sizeof(parts));
}

}  // namespace lockstep::detail
