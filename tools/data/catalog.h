// Which files a public data set is made of, and what they must be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

struct CatalogFile {
  std::string url{}, name{};  ///< `name`: the last part of the address
  int64_t bytes = 0;
  std::string sha256{};  ///< hexadecimal
  std::string source{};  ///< the public file that address, size and checksum come from
};

struct CatalogEntry {
  std::string name{}, about{}, part{};
  std::vector<std::string> parts{};  ///< all there are; empty for a data set without
  std::vector<CatalogFile> files{};
};

/// JSON: {"NAME": {"about": ..., "files": [{"url", "bytes", "sha256", "source"}, ...]}}. Instead of "files", "parts": {"PART":
/// [files]} and "default_part". "address" and "source" of an entry are those of files without.
extern const char* const built_in_catalog;

/// The data sets of a catalog, each in its default part; `origin` stands in errors. Throws ValueError for what is not of that form.
std::vector<CatalogEntry> read_catalog(std::string_view json, const std::string& origin);

/// One data set in one part ("": the default). Throws ValueError for a name or part that is not there, listing those that
/// are, and for an unverified entry: one that lacks the size, the checksum or the source of a file.
CatalogEntry find_entry(std::string_view json, const std::string& origin, const std::string& name,
                        const std::string& part);

}  // namespace lockstep::tools
