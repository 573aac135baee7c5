// Reading what trackers and the Trainer have logged.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tools/report/series.h"

namespace lockstep::tools {

struct ReadHistory {
  History history{};
  size_t damaged_lines = 0;  ///< whole lines that are no record, left out
};

/// Reads the file of a JsonLinesTracker, or log.jsonl. Texts and histograms are left out. `name_of` gives the
/// name under which a value is kept; an empty one leaves it out. Throws FileError where the file cannot be
/// read.
ReadHistory read_json_lines(const std::filesystem::path& path,
                            const std::function<std::string(const std::string&)>& name_of = {});

/// Reads the file of a CsvTracker, or any table with a column "step" and, if it has one, a column "time"
/// (seconds since 1970). Throws FileError where the file cannot be read or has no such column.
ReadHistory read_csv_history(const std::filesystem::path& path);

}  // namespace lockstep::tools
