// A ProcessGroup as LibTorch's own interfaces want it: the reverse of c10d_group.h.
#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep::backends {

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(ProcessGroup group);

}  // namespace lockstep::backends
