// Hashes of memory and texts, by which ranks compare what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::detail {

/// XXH3 (64 bits) of `bytes` bytes at `data`: of more than 1 MiB that of the hashes of its pieces of 1 MiB, which
/// LibTorch's threads make. The same for any number of threads. Thread-safe.
uint64_t hash_of_memory(const void* data, size_t bytes);

/// One hash of a name, of what is said about the thing, and of its contents.
uint64_t hash_of_item(std::string_view name, std::string_view description, uint64_t contents);

}  // namespace lockstep::detail
