// The frames of TensorFlow's record files, which TensorBoard's event files are.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// Appends `event` with its length and checksums to `out`.
void append_event_record(std::string& out, std::string_view event);

/// Calls `use` with every event of `file`, up to the first that is unfinished or damaged.
void read_event_records(std::string_view file, const std::function<void(std::string_view)>& use);

}  // namespace lockstep
