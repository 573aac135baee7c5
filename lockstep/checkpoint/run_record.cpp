#include "lockstep/checkpoint/run_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr std::array kKinds = {
    std::pair{RecordKind::data, "data"},   std::pair{RecordKind::labels, "labels"},
    std::pair{RecordKind::model, "model"}, std::pair{RecordKind::flags, "flags"},
    std::pair{RecordKind::seed, "seed"},   std::pair{RecordKind::sampling, "sampling"},
    std::pair{RecordKind::world, "world"},
};

std::optional<RecordKind> find_kind(std::string_view name) {
  for (const auto& [kind, its_name] : kKinds) {
    if (name == its_name) return kind;
  }
  return std::nullopt;
}

std::string to_line(const json& value) { return dump_json(value, {.replace_invalid_utf8 = true}); }

constexpr size_t kMostCharacters = 160;

/// The place of the character that `at` lies in.
size_t begin_of_character(const std::string& text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) --at;
  return at;
}

std::string shorten(std::string text) {
  if (text.size() <= kMostCharacters) return text;
  text.resize(begin_of_character(text, kMostCharacters));
  return text + "...";
}

/// Both values shortened, so that the first difference is in sight.
std::pair<std::string, std::string> shorten_both(std::string before, std::string after) {
  constexpr size_t kContext = 40;
  const size_t most = std::min(before.size(), after.size());
  const auto same =
      std::mismatch(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(most), after.begin());
  const auto place = static_cast<size_t>(same.first - before.begin());
  if (std::max(before.size(), after.size()) > kMostCharacters && place + kContext > kMostCharacters) {
    const size_t begin = begin_of_character(before, place - kContext);
    for (std::string* const text : {&before, &after}) *text = "..." + text->substr(begin);
  }
  return {shorten(std::move(before)), shorten(std::move(after))};
}

/// Lists that are too long to be shown whole, by the entry that differs first.
std::pair<std::string, std::string> describe_lists(const json& saved, const json& now) {
  size_t at = 0;
  while (at < saved.size() && at < now.size() && saved[at] == now[at]) ++at;
  const auto line_at = [at](const json& list) {
    return at < list.size() ? to_line(list[at]) : std::string();
  };
  const auto [before, after] = shorten_both(line_at(saved), line_at(now));
  const auto describe_list = [at](const json& list, const std::string& entry) {
    return fmt::format("{} entries, {}", list.size(),
                       at < list.size() ? fmt::format("entry {} is {}", at, entry) : "no more");
  };
  return {describe_list(saved, before), describe_list(now, after)};
}

void compare_values(const std::string& name, RecordKind kind, const json& saved, const json& now,
                    std::vector<RecordDifference>& found) {
  if (saved == now) return;
  if (saved.is_object() && now.is_object()) {
    for (const auto& [key, value] : saved.items()) {
      const std::string inner = name + "." + key;
      if (now.contains(key)) {
        compare_values(inner, kind, value, now[key], found);
      } else {
        found.push_back({inner, kind, shorten(to_line(value)), "nothing"});
      }
    }
    for (const auto& [key, value] : now.items()) {
      if (!saved.contains(key)) found.push_back({name + "." + key, kind, "nothing", shorten(to_line(value))});
    }
    return;
  }
  const std::string before = to_line(saved), after = to_line(now);
  const bool are_long_lists =
      saved.is_array() && now.is_array() && std::max(before.size(), after.size()) > kMostCharacters;
  auto [old_text, new_text] = are_long_lists ? describe_lists(saved, now) : shorten_both(before, after);
  found.push_back({name, kind, std::move(old_text), std::move(new_text)});
}

[[noreturn]] void refuse_file(const std::string& source, const std::string& what) {
  throw FileError(fmt::format("{}: {}", source, what));
}

RecordKind read_kind(const json& value, const std::string& source) {
  const auto kind = value.is_string() ? find_kind(value.get<std::string>()) : std::nullopt;
  if (!kind) refuse_file(source, "unknown kind of entry " + to_line(value));
  return *kind;
}

ResumedAnyway read_resumed(const json& value, const std::string& source) {
  if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer() ||
      !value.contains("kinds") || !value["kinds"].is_array() || !value.contains("differences") ||
      !value["differences"].is_array()) {
    refuse_file(source, "an entry of \"resumed_anyway\" lacks step, kinds or differences");
  }
  ResumedAnyway resumed{.step = value["step"].get<int64_t>()};
  for (const auto& kind : value["kinds"]) resumed.kinds.insert(read_kind(kind, source));
  for (const auto& text : value["differences"]) {
    if (!text.is_string()) refuse_file(source, "a difference in \"resumed_anyway\" is not a text");
    resumed.differences.push_back(text.get<std::string>());
  }
  return resumed;
}

}  // namespace

const char* name_of(RecordKind kind) {
  for (const auto& [each, name] : kKinds) {
    if (kind == each) return name;
  }
  return "unknown";
}

std::set<RecordKind> parse_record_kinds(std::string_view list) {
  std::set<RecordKind> kinds;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, comma);
    const auto kind = find_kind(name);
    if (!kind || *kind == RecordKind::world) {
      throw ValueError(fmt::format(
          "\"{}\" is not something that may differ; known are data, labels, model, flags, seed and sampling, with "
          "commas between",
          name));
    }
    kinds.insert(*kind);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return kinds;
}

std::string describe(const RecordDifference& difference) {
  return fmt::format("{}: {} in the checkpoint, now {}", difference.name, difference.saved, difference.now);
}

ResumedAnyway describe_resume(int64_t step, const std::vector<RecordDifference>& allowed) {
  ResumedAnyway resumed{.step = step};
  for (const auto& each : allowed) {
    resumed.kinds.insert(each.kind);
    resumed.differences.push_back(describe(each));
  }
  return resumed;
}

void RunRecord::set(const std::string& name, RecordKind kind, std::string_view text) {
  entries_[name] = {kind, to_line(json(std::string(text)))};
}

void RunRecord::set(const std::string& name, RecordKind kind, double value) {
  // JSON has no infinity and no "not a number".
  entries_[name] = {kind, to_line(std::isfinite(value) ? json(value) : json(fmt::format("{}", value)))};
}

void RunRecord::set(const std::string& name, RecordKind kind, const std::vector<std::string>& texts) {
  entries_[name] = {kind, to_line(json(texts))};
}

void RunRecord::set_json(const std::string& name, RecordKind kind, std::string_view text) {
  size_t error_byte = 0;
  const json value = parse_json(text, &error_byte);
  if (value.is_discarded()) {
    throw ValueError(fmt::format("the entry {} of a run's record is not JSON (byte {}): {}", name, error_byte,
                                 shorten(std::string(text))));
  }
  entries_[name] = {kind, to_line(value)};
}

void RunRecord::add(const RunRecord& other) {
  for (const auto& [name, entry] : other.entries_) entries_[name] = entry;
}

std::string RunRecord::to_json() const {
  json entries = json::object(), resumed = json::array();
  for (const auto& [name, entry] : entries_) {
    entries[name] = {{"kind", name_of(entry.kind)}, {"value", parse_json(entry.json)}};
  }
  for (const auto& each : resumed_anyway_) {
    json kinds = json::array();
    for (const auto kind : each.kinds) kinds.push_back(name_of(kind));
    resumed.push_back({{"step", each.step}, {"kinds", kinds}, {"differences", each.differences}});
  }
  const json all = {{"version", 1}, {"entries", entries}, {"resumed_anyway", resumed}};
  return dump_json(all, {.indent = 2, .replace_invalid_utf8 = true}) + "\n";
}

RunRecord RunRecord::from_json(std::string_view text, const std::string& source) {
  const json all = parse_json(text);
  if (!all.is_object() || !all.contains("version") || !all.contains("entries") ||
      !all["entries"].is_object()) {
    refuse_file(source, "expected a JSON object with \"version\" and \"entries\"");
  }
  if (all["version"] != 1) {
    refuse_file(source,
                fmt::format("its version is {}; this program reads version 1", to_line(all["version"])));
  }
  RunRecord record;
  for (const auto& [name, entry] : all["entries"].items()) {
    if (!entry.is_object() || !entry.contains("kind") || !entry.contains("value")) {
      refuse_file(source, fmt::format("the entry {} has no kind or no value", name));
    }
    record.entries_[name] = {read_kind(entry["kind"], source), to_line(entry["value"])};
  }
  if (all.contains("resumed_anyway") && all["resumed_anyway"].is_array()) {
    for (const auto& each : all["resumed_anyway"])
      record.resumed_anyway_.push_back(read_resumed(each, source));
  }
  return record;
}

std::vector<RecordDifference> compare(const RunRecord& saved, const RunRecord& now) {
  std::vector<RecordDifference> found;
  for (const auto& [name, entry] : saved.entries()) {
    const auto other = now.entries().find(name);
    if (other == now.entries().end()) {
      found.push_back({name, entry.kind, shorten(entry.json), "nothing"});
    } else {
      compare_values(name, other->second.kind, parse_json(entry.json), parse_json(other->second.json), found);
    }
  }
  for (const auto& [name, entry] : now.entries()) {
    if (!saved.has(name)) found.push_back({name, entry.kind, "nothing", shorten(entry.json)});
  }
  return found;
}

RecordCheck check(std::vector<RecordDifference> differences, const std::set<RecordKind>& anyway) {
  RecordCheck sorted;
  for (auto& each : differences) {
    auto& place = each.kind == RecordKind::world ? sorted.said
                  : anyway.contains(each.kind)   ? sorted.allowed
                                                 : sorted.refused;
    place.push_back(std::move(each));
  }
  return sorted;
}

void refuse_changes(const std::vector<RecordDifference>& refused, const std::string& place,
                    const std::string& how) {
  if (refused.empty()) return;
  std::vector<std::string> texts;
  std::set<RecordKind> kinds;
  for (const auto& each : refused) {
    kinds.insert(each.kind);
    texts.push_back(describe(each));
  }
  // The first line is what a launcher repeats; all values that do not fit into it stand below.
  constexpr size_t kMost = 12;
  const auto first = texts.begin(), rest = first + static_cast<std::ptrdiff_t>(std::min(texts.size(), kMost));
  std::string more, below;
  if (rest != texts.end()) {
    more = fmt::format("; and {} more, below", texts.end() - rest);
    below = fmt::format("\n  {}", fmt::join(rest, texts.end(), "\n  "));
  }
  std::vector<std::string> names;
  for (const auto kind : kinds) names.emplace_back(name_of(kind));
  throw ValueError(fmt::format(
      "{} is of another run: {}{}; resume with what that run had, or allow the change with {}{}{}", place,
      fmt::join(first, rest, "; "), more, how, fmt::join(names, ","), below));
}

}  // namespace lockstep::checkpoint
