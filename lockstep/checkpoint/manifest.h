// manifest.json: which files a checkpoint has, with their sizes and hashes. No tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";

struct ManifestEntry {
  uint64_t bytes = 0;
  std::string xxh3{};  ///< XXH3, 64 bits, as 16 hexadecimal digits
  bool operator==(const ManifestEntry&) const = default;
};

struct Manifest {
  int64_t step = 0;
  int world_size = 1;  ///< ranks that have written
  std::map<std::string, ManifestEntry> files{};
};

/// XXH3 (64 bits) of bytes that come in pieces.
class Hash {
 public:
  Hash();
  ~Hash();
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  void update(std::string_view bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// JSON whose last member is the hash of everything before it.
std::string manifest_text(const Manifest& manifest);
/// Throws FileError that begins with `file` for anything that manifest_text() has not written.
Manifest parse_manifest(std::string_view text, const std::string& file);

/// The manifest of the directory `path`. Throws FileError naming what is missing or wrong with it; the files
/// are not looked at.
Manifest read_manifest(const std::filesystem::path& path);
/// Compares size and hash of every file, on several threads where that pays; reads all of them. Throws
/// FileError naming the first file, in alphabetical order, that is missing or differs. Blocks.
void verify_files(const std::filesystem::path& path, const Manifest& manifest);

}  // namespace lockstep::checkpoint
