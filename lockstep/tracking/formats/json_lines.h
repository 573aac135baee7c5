// A run's values as lines of JSON: {"step": 10, "time": 1795369332.957, "loss": 0.41}.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// Appends the line of `values`, with the present time. Values named "step" and "time" are left out.
void append_json_line(std::string& out, int64_t step, const TrackedValues& values, NotFinite not_finite);
/// Appends {"step": 10, "time": ..., "name": "text"}.
void append_json_line(std::string& out, int64_t step, const std::string& name, std::string_view text);
/// Appends {"step": 10, "time": ..., "name": {"edges": [...], "counts": [...]}}.
void append_json_line(std::string& out, int64_t step, const std::string& name, const Histogram& histogram);

/// The whole lines of `lines` that a resumed run keeps, each with its end. A line of a step stays if `records`
/// keeps it; `keep_other(line, last_is_kept)` decides on a line without a step, where `last_is_kept` says whether
/// the line of a step before it has stayed (true if there is none). What follows the last '\n' is cut off.
std::string kept_json_lines(std::string_view lines, KeptRecords records,
                            const std::function<bool(std::string_view line, bool last_is_kept)>& keep_other);

}  // namespace lockstep
