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

/// One of the things that stand behind a bar.
struct BarField {
  std::string text;     ///< what it says where there is room
  std::string brief{};  ///< what it says where there is less; "": it is left out there
  int rank = 0;         ///< where it is narrow, the lowest goes first; below 0: before the bar itself
};

/// A line of at most `columns` columns: label, percentage and bar where the share that is done is known, fields in the
/// order given. Where it is narrow, the bar shrinks to 6 cells first, as tqdm's does; then fields become brief and go, by
/// their rank; the bar goes before those of rank 0 and higher. Without `unicode` the bar is drawn with '#'.
std::string render_bar(const std::string& label, std::optional<double> share, std::vector<BarField> fields,
                       int columns, bool unicode);

}  // namespace lockstep
