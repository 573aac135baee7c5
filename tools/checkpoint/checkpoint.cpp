// `lockstep checkpoint`: looks at checkpoints and verifies them, without LibTorch; converting is in convert.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits[unit]);
}

uint64_t bytes_of(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : manifest.files) bytes += entry.bytes;
  return bytes;
}

std::string format_time(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return "";
  std::tm time{};
  ::localtime_r(&status.st_mtime, &time);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &time);
  return {text.data(), size};
}

bool is_checkpoint(const fs::path& directory) { return fs::exists(directory / kManifestName); }

/// The checkpoint itself, or those of a folder, the newest first. Throws FileError where there is none.
std::vector<fs::path> checkpoints_at(const fs::path& directory) {
  if (is_checkpoint(directory)) return {directory};
  if (!fs::is_directory(directory)) {
    throw FileError(fmt::format("{} is not a directory; expected a checkpoint, or a folder of checkpoints",
                                directory.string()));
  }
  std::vector<fs::path> found;
  for (const auto& candidate : candidates(directory)) found.push_back(candidate.path);
  if (found.empty()) {
    throw FileError(fmt::format("{} holds no checkpoint-<step> directory, and is no checkpoint itself",
                                directory.string()));
  }
  return found;
}

/// Compares sizes only. Empty: all there.
std::string missing_in(const fs::path& directory, const Manifest& manifest) {
  for (const auto& [name, entry] : manifest.files) {
    std::error_code error;
    const auto bytes = fs::file_size(directory / name, error);
    if (error) return fmt::format("{}: {}", name, error.message());
    if (bytes != entry.bytes) return fmt::format("{} has {} bytes instead of {}", name, bytes, entry.bytes);
  }
  return {};
}

int list(const fs::path& directory) {
  const auto found = checkpoints_at(directory);
  size_t width = std::strlen("checkpoint");
  for (const auto& path : found) width = std::max(width, path.filename().string().size());
  fmt::print("{:{}} {:>9} {:>10} {:>6} {:>6}  {:19}  {}\n", "checkpoint", width, "step", "size", "files",
             "ranks", "saved", "state");
  for (const auto& path : found) {
    const std::string name = path.filename().string();
    try {
      const Manifest manifest = read_manifest(path);
      const std::string missing = missing_in(path, manifest);
      fmt::print("{:{}} {:>9} {:>10} {:>6} {:>6}  {:19}  {}\n", name, width, manifest.step,
                 size_text(bytes_of(manifest)), manifest.files.size(), manifest.world_size,
                 format_time(path / kManifestName),
                 missing.empty() ? "complete" : fmt::format("damaged: {}", missing));
    } catch (const FileError& error) {
      fmt::print("{:{}} {:>9} {:>10} {:>6} {:>6}  {:19}  {}\n", name, width, "-", "-", "-", "-", "-",
                 error.what());
    }
  }
  return 0;
}

int verify(const std::vector<std::string>& directories) {
  bool all_good = true;
  for (const auto& directory : directories) {
    for (const auto& path : checkpoints_at(directory)) {
      try {
        const Manifest manifest = read_manifest(path);
        verify_files(path, manifest);
        fmt::print("{}: {} files, {}, as they were written\n", path.string(), manifest.files.size(),
                   size_text(bytes_of(manifest)));
      } catch (const FileError& error) {
        all_good = false;
        fmt::print("{}: refused: {}\n", path.string(), error.what());
      }
    }
  }
  return all_good ? 0 : 1;
}

SafetensorsHeader read_header(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  uint64_t length = 0;
  const uint64_t bytes = fs::file_size(file);
  stream.read(reinterpret_cast<char*>(&length), sizeof length);
  if (!stream || length > kMaxHeaderBytes || sizeof length + length > bytes) {
    throw FileError(fmt::format("{} is not a safetensors file", file.string()));
  }
  std::string text(length, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(length));
  if (!stream) throw FileError(fmt::format("cannot read {}", file.string()));
  return parse_safetensors_header(text, bytes - sizeof length - length, file.string());
}

void show_tensors(const fs::path& file) {
  const SafetensorsHeader header = read_header(file);
  fmt::print("\n{}: {} tensors\n", file.filename().string(), header.entries.size());
  for (const auto& entry : header.entries) {
    fmt::print("  {:60} {:8} [{}]\n", entry.name, entry.dtype, fmt::join(entry.shape, ", "));
  }
  for (const auto& [name, value] : header.metadata) {
    const nlohmann::json scalars = name == "scalars" ? parse_json(value) : nlohmann::json();
    if (!scalars.is_object()) {
      if (name != "format") fmt::print("  {:60} metadata {}\n", name, value);
      continue;
    }
    for (const auto& [key, scalar] : scalars.items()) fmt::print("  {:60} = {}\n", key, dump_json(scalar));
  }
}

int inspect(const fs::path& directory) {
  fs::path path = directory;
  if (!is_checkpoint(directory)) {
    checkpoints_at(directory);  // throws where there is none
    const auto found = find_latest(directory, [](const fs::path& refused, const std::string& reason) {
      fmt::print(stderr, "{} is not used: {}\n", refused.string(), reason);
    });
    if (!found) throw FileError(fmt::format("{} holds no complete checkpoint", directory.string()));
    path = found->path;
  }
  const Manifest manifest = read_manifest(path);
  fmt::print("{}: step {}, saved by {} rank{} at {}\n\n", path.string(), manifest.step, manifest.world_size,
             manifest.world_size == 1 ? "" : "s", format_time(path / kManifestName));
  fmt::print("{:44} {:>14}  {}\n", "file", "bytes", "xxh3");
  for (const auto& [name, entry] : manifest.files) {
    fmt::print("{:44} {:>14}  {}\n", name, entry.bytes, entry.xxh3);
  }
  for (const auto& [name, entry] : manifest.files) {
    if (name.ends_with(".safetensors")) show_tensors(path / name);
  }
  return 0;
}

struct CheckpointArguments {
  fs::path directory;
  std::vector<std::string> directories;
};

/// The table of a subcommand that takes directories alone.
template <class Member>
constexpr auto table_of(Member CheckpointArguments::*member, std::string_view words) {
  return std::to_array<Flag<CheckpointArguments>>(
      {{.name = "directory", .member = member, .words = words, .is_required = true, .is_place = true}});
}
constexpr auto kListFlags =
    table_of(&CheckpointArguments::directory, "A folder of checkpoints, or one checkpoint");
constexpr auto kVerifyFlags =
    table_of(&CheckpointArguments::directories, "Checkpoints, or folders of which all are verified");
constexpr auto kInspectFlags =
    table_of(&CheckpointArguments::directory, "A checkpoint, or a folder of checkpoints");

}  // namespace

void add_checkpoint(CommandLine app, Action& action) {
  auto arguments = std::make_shared<CheckpointArguments>();
  auto command = app.add_subcommand("checkpoint",
                                    "Looks at checkpoints, verifies and converts them (docs/checkpoints.md)");
  command.require_subcommand();

  auto list_command = command.add_subcommand(
      "list",
      "The checkpoints of a folder, the newest first; sizes are compared with the manifests, hashes are not");
  list_command.add_table<CheckpointArguments>(kListFlags, *arguments);
  list_command.add_example("What a run has saved", "lockstep checkpoint list run");
  list_command.callback(
      [arguments, &action] { action = [arguments] { return list(arguments->directory); }; });

  auto verify_command = command.add_subcommand(
      "verify", "Reads every file and compares its hash with the manifest; exits with 1 where one differs");
  verify_command.add_table<CheckpointArguments>(kVerifyFlags, *arguments);
  verify_command.add_example("Before a copy is trusted", "lockstep checkpoint verify backup/checkpoint-500");
  verify_command.callback(
      [arguments, &action] { action = [arguments] { return verify(arguments->directories); }; });

  auto inspect_command = command.add_subcommand(
      "inspect", "Files, tensors and scalars of a checkpoint; of a folder, of the newest complete one");
  inspect_command.add_table<CheckpointArguments>(kInspectFlags, *arguments);
  inspect_command.callback(
      [arguments, &action] { action = [arguments] { return inspect(arguments->directory); }; });

  add_checkpoint_convert(command, action);
}

}  // namespace lockstep::tools
