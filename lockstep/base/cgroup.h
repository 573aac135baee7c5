// The control groups (cgroup v1 or v2) that this process is in.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Calls `look` with the folder of this process's group under `root` and of each one above it. controller: of
/// v1, such as "memory"; "" for v2. Where there is no such hierarchy it is not called.
void for_each_cgroup(const std::filesystem::path& root, std::string_view controller,
                     const std::function<void(const std::filesystem::path&)>& look);

/// What a file holds; "" where it is missing or unreadable.
std::string read_if_there(const std::filesystem::path& path);

/// Bytes that a memory group with these texts may still take, files that can be dropped counted as free;
/// nullopt without a limit. limit: of memory.max or memory.limit_in_bytes; used: memory.current or
/// memory.usage_in_bytes; stat: memory.stat.
std::optional<size_t> room_in_cgroup(const std::string& limit, const std::string& used,
                                     const std::string& stat);

/// Bytes that this process may still take before the machine or the tightest of its groups is full: free and
/// reclaimable memory and swap. nullopt where the system does not tell.
std::optional<size_t> free_memory();

}  // namespace lockstep
