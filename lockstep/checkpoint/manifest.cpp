#include "lockstep/checkpoint/manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormatName = "lockstep checkpoint";
constexpr int kFormatVersion = 1;
constexpr std::string_view kSealStart = ",\n  \"manifest_xxh3\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";

std::string hex_of(uint64_t hash) { return fmt::format("{:016x}", hash); }

// What differs between the file and its entry; empty: nothing.
std::string difference(const fs::path& file, const ManifestEntry& entry) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    return fmt::format("cannot read {}: {}", file.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) return fmt::format("{} is not a regular file", file.string());
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes != entry.bytes) {
    return fmt::format("{} has {} bytes, its manifest says {}", file.string(), bytes, entry.bytes);
  }
  Hash hash;
  std::vector<char> buffer(std::min<uint64_t>(bytes, 1 << 20));
  for (uint64_t left = bytes; left > 0;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), std::min<uint64_t>(left, buffer.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fmt::format("cannot read {}: {}", file.string(), std::strerror(errno));
    if (n == 0) return fmt::format("{} was truncated while it was read", file.string());
    hash.update({buffer.data(), static_cast<size_t>(n)});
    left -= static_cast<uint64_t>(n);
  }
  if (hash.hex() == entry.xxh3) return {};
  return fmt::format("{} is damaged: its hash is {}, its manifest says {}", file.string(), hash.hex(),
                     entry.xxh3);
}

}  // namespace

struct Hash::State {
  XXH3_state_t xxh;
};

Hash::Hash() : state_(new State) { XXH3_64bits_reset(&state_->xxh); }
Hash::~Hash() = default;
void Hash::update(std::string_view bytes) { XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()); }
std::string Hash::hex() const { return hex_of(XXH3_64bits_digest(&state_->xxh)); }

std::string manifest_text(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [name, entry] : manifest.files) {
    files[name] = {{"bytes", entry.bytes}, {"xxh3", entry.xxh3}};
  }
  std::string text = dump_json({{"format", kFormatName},
                                {"version", kFormatVersion},
                                {"step", manifest.step},
                                {"world_size", manifest.world_size},
                                {"files", std::move(files)}},
                               {.indent = 2});
  text.resize(text.size() - 2);  // "\n}"
  const std::string seal = hex_of(XXH3_64bits(text.data(), text.size()));
  return fmt::format("{}{}{}{}", text, kSealStart, seal, kSealEnd);
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  constexpr size_t kDigits = 16;
  constexpr size_t kSealBytes = kSealStart.size() + kDigits + kSealEnd.size();
  const auto refuse = [&](const char* why) { throw FileError(fmt::format("{} is damaged: {}", file, why)); };
  if (text.size() < kSealBytes) refuse("it is too short");
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  const std::string_view seal = text.substr(body.size());
  if (!seal.starts_with(kSealStart) || !seal.ends_with(kSealEnd)) refuse("it does not end with its hash");
  if (seal.substr(kSealStart.size(), kDigits) != hex_of(XXH3_64bits(body.data(), body.size()))) {
    refuse("its hash is not that of its text");
  }
  const nlohmann::json json = parse_json(text);
  try {
    if (json.at("format") != kFormatName) refuse("it is no manifest of a checkpoint");
    if (json.at("version") != kFormatVersion) {
      throw FileError(fmt::format("{} has version {}; this program reads version {}", file,
                                  json.at("version").get<int64_t>(), kFormatVersion));
    }
    Manifest manifest{.step = json.at("step").get<int64_t>(), .world_size = json.at("world_size").get<int>()};
    for (const auto& [name, entry] : json.at("files").items()) {
      if (name.empty() || name.find('/') != std::string::npos) refuse("a file's name has a slash");
      manifest.files[name] = {entry.at("bytes").get<uint64_t>(), entry.at("xxh3").get<std::string>()};
    }
    return manifest;
  } catch (const nlohmann::json::exception&) {
    throw FileError(fmt::format("{} is damaged: a member is missing or of another type", file));
  }
}

Manifest read_manifest(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw FileError(fmt::format("{}{}; expected the directory of a checkpoint", path.string(),
                                (fs::exists(path, error) ? " is not a directory" : " does not exist")));
  }
  if (!fs::exists(path / kManifestName, error)) {
    throw FileError(fmt::format("{} has no {}: it is no checkpoint, or was never complete", path.string(),
                                kManifestName));
  }
  return parse_manifest(read_file(path / kManifestName), (path / kManifestName).string());
}

void verify_files(const fs::path& path, const Manifest& manifest) {
  struct Check {
    fs::path file;
    ManifestEntry entry;
    std::string difference;
  };
  std::vector<Check> checks;
  uint64_t bytes = 0;
  for (const auto& [name, entry] : manifest.files) {
    checks.push_back({path / name, entry, {}});
    bytes += entry.bytes;
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < checks.size(); i = next++) {
      checks[i].difference = difference(checks[i].file, checks[i].entry);
    }
  };
  constexpr uint64_t kBytesPerThread = 32 << 20;
  const auto threads = std::min<size_t>(
      {checks.size(), static_cast<size_t>(bytes / kBytesPerThread + 1), static_cast<size_t>(usable_cores())});
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  for (const auto& check : checks) {
    if (!check.difference.empty()) throw FileError(check.difference);
  }
}

}  // namespace lockstep::checkpoint
