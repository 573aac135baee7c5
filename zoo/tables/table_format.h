// What a table's file is, told by its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tables {

enum class TableFormat : uint8_t { CSV, TSV, JSON_LINES, PARQUET, ARROW };

/// How a text file (CSV, TSV, JSON lines) is compressed as a whole.
enum class TableCompression : uint8_t { NONE, GZIP, ZSTD, BZ2, LZ4 };

struct TableFileType {
  TableFormat format{};
  TableCompression compression{};
};

/// .csv; .tsv and .txt (tabs); .jsonl, .ndjson and .json (an object a line); .parquet; .arrow (Arrow IPC, the files
/// of `datasets`). Texts may end in .gz, .zst, .bz2 or .lz4 besides. Throws FileError that lists them.
TableFileType table_file_type(const std::filesystem::path& path);

}  // namespace lockstep::tables
