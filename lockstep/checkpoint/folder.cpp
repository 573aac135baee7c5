#include "lockstep/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/publish.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNameStart = "checkpoint-";
constexpr std::string_view kTemporaryEnd = ".tmp";    // being written
constexpr std::string_view kReplacedEnd = ".old";     // a new one of that step takes its name
constexpr std::string_view kRemovedEnd = ".removed";  // being removed
constexpr const char* kLatestTemporary = ".latest.tmp";

fs::path hidden(const fs::path& folder, int64_t step, std::string_view end) {
  return folder / fmt::format(".{}{}", checkpoint_name(step), end);
}

/// The step in ".checkpoint-<step>`end`".
std::optional<int64_t> step_of_hidden(std::string_view name, std::string_view end) {
  if (!name.starts_with('.') || !name.ends_with(end)) return std::nullopt;
  return parse_step(name.substr(1, name.size() - 1 - end.size()));
}

bool is_probe(std::string_view name) {
  return name.starts_with(kProbeStart) && name.size() == kProbeStart.size() + 6;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

/// Why the directory does not count; empty: it does.
std::string refusal(const fs::path& path, int64_t step) {
  try {
    const Manifest manifest = read_manifest(path);
    if (manifest.step != step) {
      return fmt::format("{} has the name of step {}, but was saved at step {}", path.string(), step,
                         manifest.step);
    }
    verify_files(path, manifest);
    return {};
  } catch (const FileError& error) {
    return error.what();
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{}", kNameStart, step); }

std::optional<int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kNameStart)) return std::nullopt;
  const std::string_view digits = name.substr(kNameStart.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (checkpoint_name(step) != name) return std::nullopt;  // checkpoint-007
  return step;
}

fs::path temporary_directory(const fs::path& folder, int64_t step) {
  return hidden(folder, step, kTemporaryEnd);
}

void publish(Files& files, const fs::path& folder, int64_t step) {
  const fs::path final = folder / checkpoint_name(step), temporary = temporary_directory(folder, step);
  if (is_there(temporary)) {
    if (is_there(final)) {
      remove_replaced(files, folder, step);
      files.rename(final, hidden(folder, step, kReplacedEnd));
    }
    files.rename(temporary, final);
  }
  files.sync_directory(folder);
}

void remove_replaced(Files& files, const fs::path& folder, int64_t step) {
  remove_tree(files, hidden(folder, step, kReplacedEnd));
}

void restore_replaced(Files& files, const fs::path& folder, int64_t step) {
  const fs::path final = folder / checkpoint_name(step), old = hidden(folder, step, kReplacedEnd);
  if (!is_there(old)) return;
  if (!is_there(final)) {
    files.rename(old, final);
    files.sync_directory(folder);
  } else if (refusal(final, step).empty() || !refusal(old, step).empty()) {
    files.sync_directory(folder);  // the name of the successor survives before this one goes
    remove_tree(files, old);
  } else {
    remove_tree(files, final);
    files.rename(old, final);
    files.sync_directory(folder);
  }
}

void point_to(Files& files, const fs::path& folder, int64_t step) {
  write_synced(files, folder / kLatestTemporary, checkpoint_name(step) + "\n");
  files.rename(folder / kLatestTemporary, folder / kLatestName);
  files.sync_directory(folder);
}

void prune(Files& files, const fs::path& folder, int64_t step, int limit, const std::set<std::string>& kept) {
  if (limit <= 0) return;
  std::vector<int64_t> steps;  // the first is the first to go
  for (const auto& entry : files.list(folder)) {
    if (const auto found = parse_step(entry.name)) steps.push_back(*found);
  }
  std::sort(steps.begin(), steps.end(),
            [&](int64_t a, int64_t b) { return (a > step) != (b > step) ? a > step : a < b; });
  auto left = static_cast<int64_t>(steps.size());
  for (const int64_t each : steps) {
    if (left <= limit) break;
    if (each == step || kept.contains(checkpoint_name(each))) continue;
    const fs::path removed = hidden(folder, each, kRemovedEnd);
    remove_tree(files, removed);
    files.rename(folder / checkpoint_name(each), removed);
    files.sync_directory(folder);  // so that no half-removed one has the name
    remove_tree(files, removed);
    --left;
  }
}

void clean(Files& files, const fs::path& folder) {
  for (const auto& entry : files.list(folder)) {
    const fs::path path = folder / entry.name;
    if (entry.name == kLatestTemporary || is_probe(entry.name)) files.remove(path);
    if (step_of_hidden(entry.name, kTemporaryEnd) || step_of_hidden(entry.name, kRemovedEnd)) {
      remove_tree(files, path);
    }
    if (const auto step = step_of_hidden(entry.name, kReplacedEnd)) restore_replaced(files, folder, *step);
  }
}

std::vector<Candidate> candidates(const fs::path& folder) {
  std::vector<Candidate> named, replaced;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return {};
  for (const auto& entry : posix_files()->list(folder)) {
    if (const auto step = parse_step(entry.name)) named.push_back({folder / entry.name, *step});
    if (const auto step = step_of_hidden(entry.name, kReplacedEnd)) {
      replaced.push_back({folder / entry.name, *step});
    }
  }
  named.insert(named.end(), replaced.begin(), replaced.end());
  std::stable_sort(named.begin(), named.end(),
                   [](const Candidate& a, const Candidate& b) { return a.step > b.step; });
  return named;
}

std::optional<Candidate> find_latest(const fs::path& folder, const OnRefused& on_refused) {
  std::optional<Candidate> found;
  std::set<std::string> refused;
  for (const auto& candidate : candidates(folder)) {
    const std::string reason = refusal(candidate.path, candidate.step);
    if (reason.empty()) {
      found = candidate;
      break;
    }
    refused.insert(checkpoint_name(candidate.step) + "\n");
    on_refused(candidate.path, reason);
  }
  const fs::path pointer = folder / kLatestName;
  if (!is_there(pointer)) return found;
  std::string text;
  try {
    text = read_file(pointer);
  } catch (const FileError& failure) {
    on_refused(pointer, failure.what());
    return found;
  }
  const std::string expected = found ? checkpoint_name(found->step) : "";
  if (text != expected + "\n" && !refused.contains(text)) {
    on_refused(pointer, fmt::format("{} says {:?}; {}", pointer.string(), text,
                                    found ? "the newest complete checkpoint is " + expected
                                          : "there is no complete checkpoint"));
  }
  return found;
}

}  // namespace lockstep::checkpoint
