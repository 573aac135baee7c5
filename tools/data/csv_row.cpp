#include "tools/data/csv_row.h"

namespace lockstep::tools {

std::string csv_row(const std::vector<std::string_view>& fields) {
  std::string row;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) row += ',';
    const bool quoted = fields[i].find_first_of(",\"\r\n") != std::string_view::npos ||
                        (fields.size() == 1 && fields[i].empty());
    if (!quoted) {
      row += fields[i];
      continue;
    }
    row += '"';
    for (const char c : fields[i]) {
      if (c == '"') row += '"';
      row += c;
    }
    row += '"';
  }
  row += '\n';
  return row;
}

}  // namespace lockstep::tools
