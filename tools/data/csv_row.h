// Writing CSV that every reader of RFC 4180 takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

/// One line, with its new line at the end: fields between commas, quoted where they hold a comma, a quote or
/// a line end, quotes doubled. A row of one empty field is `""`, for readers skip empty lines.
std::string csv_row(const std::vector<std::string_view>& fields);

}  // namespace lockstep::tools
