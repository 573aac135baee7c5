#include "lockstep/zoo/tables/table_format.h"

#include <fmt/format.h>

#include <map>

#include "lockstep/base/error.h"

namespace lockstep::tables {

TableFileType table_file_type(const std::filesystem::path& path) {
  static const std::map<std::string, TableCompression> compressions = {{".gz", TableCompression::GZIP},
                                                                       {".zst", TableCompression::ZSTD},
                                                                       {".bz2", TableCompression::BZ2},
                                                                       {".lz4", TableCompression::LZ4}};
  static const std::map<std::string, TableFormat> formats = {
      {".csv", TableFormat::CSV},          {".tsv", TableFormat::TSV},
      {".txt", TableFormat::TSV},          {".json", TableFormat::JSON_LINES},
      {".jsonl", TableFormat::JSON_LINES}, {".ndjson", TableFormat::JSON_LINES},
      {".parquet", TableFormat::PARQUET},  {".arrow", TableFormat::ARROW}};
  auto name = path.filename();
  auto compression = TableCompression::NONE;
  if (const auto found = compressions.find(name.extension().string()); found != compressions.end()) {
    compression = found->second;
    name.replace_extension();
  }
  const auto format = formats.find(name.extension().string());
  if (format == formats.end()) {
    throw FileError(
        fmt::format("cannot tell the format of {}: expected a name that ends in .csv (commas), .tsv or .txt "
                    "(tabs), .jsonl (a JSON object a line), .parquet or .arrow",
                    path.string()));
  }
  const bool is_text = format->second != TableFormat::PARQUET && format->second != TableFormat::ARROW;
  if (compression != TableCompression::NONE && !is_text) {
    throw FileError(fmt::format("{}: unpack it first; a {} file is compressed inside", path.string(),
                                format->first.substr(1)));
  }
  return {format->second, compression};
}

}  // namespace lockstep::tables
