// JSON, appended piece by piece: for records that are written at every step.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// What stands for a number that is not finite.
enum class NotFinite {
  null,     ///< null: JSON has no other word
  literal,  ///< NaN, Infinity, -Infinity: what Python's json reads and writes
};

/// With as many digits as it takes to read the same number again.
void append_json_number(std::string& out, double value, NotFinite not_finite);
void append_json_number(std::string& out, int64_t value);
/// Bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);
void append_json(std::string& out, const TrackedSetting& value, NotFinite not_finite);
/// {"name": value, ...}
void append_json(std::string& out, const TrackedSettings& values, NotFinite not_finite);

}  // namespace lockstep
