// Preparation that succeeds on all ranks or fails on all, with one message.
#pragma once

#include <functional>

#include "lockstep/comm/process_group.h"

namespace lockstep::trainer {

/// Calls `body` on every rank and waits for all. When it throws anywhere, the lowest rank where it did prints
/// its error (lockstep/base/main.h), and then every rank throws ReportedError: a wrong flag or a missing file
/// gives one line, not one a rank, and nobody waits for a rank that is gone. Alone, exceptions pass through.
/// Blocks.
void on_all_ranks(const ProcessGroup& group, const std::function<void()>& body);

}  // namespace lockstep::trainer
