// Preparation that succeeds on all ranks or fails on all, with one message.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Calls `body` on every rank and waits for all. When it throws anywhere, the lowest rank where it did prints
/// its error (lockstep/base/main.h), and when it has, every rank throws ReportedError: a wrong flag or a
/// missing file gives one line, not one a rank. The group stays usable. Each rank writes the error to its
/// error file (lockstep/base/record_errors.h), so that a launcher names the cause whichever rank it sees end
/// first. With a group of one, and for a CommError, which is about the group itself, exceptions pass through.
/// Blocks.
void on_all_ranks(const ProcessGroup& group, const std::function<void()>& body);

/// Returns what `make` returns on this rank.
///
///     const Data data = lockstep::on_all_ranks(world, [&] { return read_data(arguments); });
template <class Make, class Made = std::invoke_result_t<const Make&>>
Made on_all_ranks(const ProcessGroup& group, const Make& make) requires(!std::is_void_v<Made>) {
  std::optional<Made> made;
  on_all_ranks(group, std::function<void()>([&] { made.emplace(make()); }));
  return std::move(*made);
}

}  // namespace lockstep
