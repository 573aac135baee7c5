// A ProcessGroup as LibTorch's own interfaces want it: the reverse of c10d_group.h.
#pragma once

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep::backends {

/// `around` calls what it is given: a wait inside a call that its caller may make with a lock of its own held, such as
/// Python's around Work.get_future(). Default: nothing is around it. Before the first such call.
void set_around_waits(void (*around)(const std::function<void()>& wait));

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(ProcessGroup group);

}  // namespace lockstep::backends
