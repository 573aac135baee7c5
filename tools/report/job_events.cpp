#include "tools/report/job_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::tools {
namespace {

using nlohmann::json;

/// The fields of an event; remembers which of them have been told.
class Fields {
 public:
  explicit Fields(const json& line) : line_(line) {}

  bool has(const char* name) const { return line_.contains(name); }
  std::string text(const char* name) {
    told_.insert(name);
    const auto found = line_.find(name);
    if (found == line_.end()) return {};
    return found->is_string() ? found->get<std::string>() : dump_json(*found, {.replace_invalid_utf8 = true});
  }
  std::optional<int64_t> number(const char* name) {
    const auto found = line_.find(name);
    if (found == line_.end() || !found->is_number_integer()) return std::nullopt;
    told_.insert(name);
    return found->get<int64_t>();
  }
  /// " on a"; empty: the event names no machine.
  std::string on_host() {
    const std::string host = text("host");
    return host.empty() ? "" : " on " + host;
  }
  /// What a later lockrun has added, and what this event usually has not.
  std::string rest() {
    std::string rest;
    for (const auto& [name, value] : line_.items()) {
      if (told_.contains(name)) continue;
      rest += fmt::format("{}{} {}", rest.empty() ? "" : ", ", name, text(name.c_str()));
    }
    return rest;
  }

 private:
  const json& line_;
  std::set<std::string, std::less<>> told_{"time", "event", "run_id", "round"};
};

std::string ranks_text(Fields& fields) {
  const auto count = fields.number("ranks"), first = fields.number("first_rank");
  if (!count) return "ranks";
  if (!first) return fmt::format("{} rank{}", *count, *count == 1 ? "" : "s");
  return *count == 1 ? fmt::format("rank {}", *first)
                     : fmt::format("ranks {} to {}", *first, *first + *count - 1);
}

std::string machine_text(Fields& fields, std::string_view what) {
  std::string text = fields.text("host");
  if (const std::string address = fields.text("address"); !address.empty()) {
    text += text.empty() ? address : fmt::format(" ({})", address);
  }
  if (fields.has("ranks")) text += fmt::format(" with {}", ranks_text(fields));
  text += fmt::format(" {}", what);
  if (const std::string reason = fields.text("reason"); !reason.empty()) text += fmt::format(" ({})", reason);
  if (const auto left = fields.number("machines"))
    text += fmt::format("; {} machine{} now", *left, *left == 1 ? "" : "s");
  return text;
}

std::string rank_text(Fields& fields) {
  std::string text = fields.has("rank")    ? fmt::format("rank {}", fields.text("rank"))
                     : fields.has("spare") ? fmt::format("spare {}", fields.text("spare"))
                                           : "a rank";
  if (const auto pid = fields.number("pid")) text += fmt::format(" (pid {})", *pid);
  return text + fields.on_host();
}

std::string exit_text(Fields& fields) {
  std::string text = rank_text(fields);
  const std::string signal = fields.text("signal"), reason = fields.text("reason");
  const auto code = fields.number("code");
  text += signal.empty() ? " ended" : " was killed by " + signal;
  if (code) text += fmt::format(" with exit code {}", *code);
  return reason.empty() ? text : text + ": " + reason;
}

std::string start_text(Fields& fields) {
  std::string text = ranks_text(fields);
  if (const auto size = fields.number("world_size")) text += fmt::format(" of {}", *size);
  text += " started" + fields.on_host();
  if (const auto restarts = fields.number("restarts"); restarts && *restarts > 0)
    text += fmt::format(" (restart {})", *restarts);
  return text;
}

std::string replace_text(Fields& fields) {
  const std::string host = fields.on_host(), rank = fields.text("rank"), reason = fields.text("reason");
  std::string text = reason.empty() ? fmt::format("rank {} died", rank) : reason;
  if (const auto at = fields.number("step")) text += fmt::format(" at step {}", *at);
  text += "; replaced";
  if (const auto spare = fields.number("spare")) {
    text += fmt::format(" by spare {}", *spare);
    if (const auto pid = fields.number("pid")) text += fmt::format(" (pid {})", *pid);
  } else if (const auto pid = fields.number("pid")) {
    text += fmt::format(" by pid {}", *pid);
  }
  text += host;
  if (fields.has("seconds")) text += fmt::format(" in {} s, no step lost", fields.text("seconds"));
  return text;
}

std::string restart_text(Fields& fields) {
  std::string text = "all ranks start again";
  if (const auto restarts = fields.number("restarts")) text += fmt::format(" (restart {})", *restarts);
  const std::string reason = fields.text("reason");
  return reason.empty() ? text : text + ": " + reason;
}

std::string end_text(Fields& fields) {
  std::string text = "the job ended";
  if (const auto code = fields.number("code")) text += fmt::format(" with exit code {}", *code);
  if (const auto restarts = fields.number("restarts"); restarts && *restarts > 0)
    text += fmt::format(" after {} restart{}", *restarts, *restarts == 1 ? "" : "s");
  const std::string reason = fields.text("reason");
  return reason.empty() ? text : text + ": " + reason;
}

/// Not what belongs to a job that goes well.
bool is_trouble(const std::string& name, const json& line) {
  static const std::set<std::string, std::less<>> kTrouble = {"leave", "replace", "restart", "hang",
                                                              "partition"};
  if (kTrouble.contains(name)) return true;
  const bool is_end = name == "exit" || name == "end";
  const auto code = line.find("code");
  return is_end && (line.contains("signal") || (code != line.end() && *code != 0));
}

}  // namespace

ReportedEvent describe_event(const json& line) {
  ReportedEvent event{.time = line.value("time", 0.0), .name = line.value("event", "")};
  Fields fields(line);
  if (event.name == "join") event.text = machine_text(fields, "joined");
  if (event.name == "leave") event.text = machine_text(fields, "left");
  if (event.name == "start") event.text = start_text(fields);
  if (event.name == "exit") event.text = exit_text(fields);
  if (event.name == "spare") event.text = rank_text(fields) + " waits in init() for a rank's place";
  if (event.name == "replace") event.text = replace_text(fields);
  if (event.name == "restart") event.text = restart_text(fields);
  if (event.name == "hang" || event.name == "partition")
    event.text = fields.text("reason") + fields.on_host();
  if (event.name == "end") event.text = end_text(fields);
  if (const std::string rest = fields.rest(); !rest.empty()) {
    event.text += event.text.empty() ? rest : fmt::format("; {}", rest);
  }
  event.is_trouble = is_trouble(event.name, line);
  return event;
}

JobEvents read_job_events(const std::filesystem::path& path, size_t most) {
  JobEvents read;
  const std::string text = read_file(path);
  size_t begin = 0;
  // What follows the last line end is still being written.
  for (size_t end = text.find('\n'); end != text.npos; begin = end + 1, end = text.find('\n', begin)) {
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const json entry = parse_json(line);
    const bool is_event = entry.is_object() && entry.contains("time") && entry["time"].is_number() &&
                          entry.contains("event") && entry["event"].is_string();
    if (!is_event) {
      ++read.damaged_lines;
      continue;
    }
    read.events.push_back(describe_event(entry));
    if (entry["event"] != "end") continue;
    const auto code = entry.find("code");
    if (code != entry.end() && code->is_number_integer()) read.end_code = code->get<int>();
  }
  std::stable_sort(read.events.begin(), read.events.end(),
                   [](const ReportedEvent& a, const ReportedEvent& b) { return a.time < b.time; });
  if (read.events.size() > most) {
    read.left_out = read.events.size() - most;
    const auto first = read.events.begin() + static_cast<std::ptrdiff_t>(most / 2);
    read.events.erase(first, first + static_cast<std::ptrdiff_t>(read.left_out));
  }
  return read;
}

}  // namespace lockstep::tools
