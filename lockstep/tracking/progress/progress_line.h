// The text of a progress bar. Pure; live_line.h puts it on the terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// "0:07", "12:34" or "1:02:03".
std::string format_duration(double seconds);

/// 1234567 as "1.23 MB".
std::string format_bytes(double bytes);

/// `format` of printf for a number: format_number("%.1f", 53.24) is "53.2".
std::string format_number(const char* format, double number);

/// Columns that `text` takes: its code points. Wide characters count as one.
int columns_of(std::string_view text);

/// A line of at most `columns` columns: label, percentage and bar where the share that is done is known, fields.
/// Where it is narrow, the last fields go first, then the bar. Without `unicode` the bar is drawn with '#'.
std::string render_bar(const std::string& label, std::optional<double> share, std::vector<std::string> fields,
                       int columns, bool unicode);

}  // namespace lockstep
