// Memory that processes share by a file descriptor.
#pragma once

#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::shm {

/// Makes an empty, unnamed file in memory, close-on-exec: a memfd, which /proc shows as `name`. If the kernel or a sandbox
/// forbids memfd_create, a file in /dev/shm whose name is gone before this returns; LOCKSTEP_NO_MEMFD=1 plays that. It goes
/// away with its last descriptor and mapping. Throws Error if both are refused.
UniqueFd make_memory_file(const std::string& name);

/// Whether `fd` is such a substitute for a memfd.
bool is_in_dev_shm(int fd);

/// What /proc shows of the file that a process has made under `name`: `target` is what its descriptor links to.
bool is_memory_file(const std::string& target, const std::string& name);

}  // namespace lockstep::shm
