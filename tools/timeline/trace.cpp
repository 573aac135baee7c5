#include "tools/timeline/trace.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Document {
  fs::path path;
  json events, other;
  double shift = 0;  // microseconds to add to its times
};

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw FileError(fmt::format("{}: {}", path.string(), what));
}

Document parse(const fs::path& path) {
  const std::string text = read_file(path);
  size_t error_byte = 0;
  json root = parse_json(text, &error_byte);
  if (root.is_discarded()) {
    fail(path, fmt::format("is not JSON (at byte {} of {}), so no timeline", error_byte, text.size()));
  }
  Document document{path, json(), json::object(), 0};
  if (root.is_array()) {
    document.events = std::move(root);
  } else if (root.is_object() && root.contains("traceEvents") && root["traceEvents"].is_array()) {
    document.events = std::move(root["traceEvents"]);
    if (root.contains("otherData") && root["otherData"].is_object())
      document.other = std::move(root["otherData"]);
  } else {
    fail(path, "is no timeline: expected an array of events, or an object with an array \"traceEvents\"");
  }
  return document;
}

/// Several files have one beginning: that of the earliest.
std::vector<Document> parse_all(const std::vector<fs::path>& files) {
  std::vector<Document> documents;
  std::vector<int64_t> bases;
  for (const fs::path& path : files) {
    documents.push_back(parse(path));
    if (files.size() == 1) return documents;
    const json& base = documents.back().other.value("base_ns", json());
    const std::string digits = base.is_string() ? base.get<std::string>() : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos) {
      fail(path, "cannot be joined with others: its otherData has no \"base_ns\", which Lockstep writes");
    }
    bases.push_back(std::stoll(digits));
  }
  const int64_t first = *std::min_element(bases.begin(), bases.end());
  for (size_t i = 0; i < documents.size(); ++i) {
    documents[i].shift = static_cast<double>(bases[i] - first) / 1e3;
  }
  return documents;
}

/// A field of an event; `fallback` where there is none and one is allowed.
double number(const Document& document, size_t index, const json& event, const char* field) {
  const auto found = event.find(field);
  if (found == event.end() || !found->is_number()) {
    fail(document.path, fmt::format("event {} needs a number \"{}\"", index, field));
  }
  return found->get<double>();
}

std::string text(const json& event, const char* field) {
  const auto found = event.find(field);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t argument(const json& event, const char* field) {
  const auto arguments = event.find("args");
  if (arguments == event.end() || !arguments->is_object()) return -1;
  const auto found = arguments->find(field);
  return found != arguments->end() && found->is_number() ? found->get<int64_t>() : -1;
}

void add_event(const Document& document, size_t index, Trace& trace) {
  const json& event = document.events[index];
  if (!event.is_object() || text(event, "ph").empty()) {
    fail(document.path, fmt::format("event {} is not an object with a \"ph\"", index));
  }
  const std::string phase = text(event, "ph");
  if (phase != "X" && phase != "i" && phase != "M") return;
  const auto pid = static_cast<int64_t>(number(document, index, event, "pid"));
  TraceRank& rank = trace.ranks[pid];
  if (rank.name.empty()) rank.name = fmt::format("rank {}", pid);
  const int64_t row = event.contains("tid") ? static_cast<int64_t>(number(document, index, event, "tid")) : 0;
  if (phase == "M") {
    const std::string what = text(event, "name");
    if (!event.contains("args") || !event["args"].is_object()) return;
    if (what == "process_name") rank.name = text(event["args"], "name");
    if (what == "thread_name") rank.rows[row] = text(event["args"], "name");
    if (what == "process_labels") rank.finished = false;
    return;
  }
  TraceSpan span;
  span.category = text(event, "cat");
  span.name = text(event, "name");
  span.begin = number(document, index, event, "ts") + document.shift;
  span.end = span.begin + (phase == "X" ? number(document, index, event, "dur") : 0);
  if (span.end < span.begin) fail(document.path, fmt::format("event {} has a negative \"dur\"", index));
  span.row = row;
  span.bucket = argument(event, "bucket");
  span.bytes = argument(event, "bytes");
  rank.spans.push_back(std::move(span));
}

}  // namespace

std::vector<std::pair<double, double>> TraceRank::of(const std::vector<std::string>& categories) const {
  std::vector<std::pair<double, double>> found;
  for (const TraceSpan& span : spans) {
    if (std::find(categories.begin(), categories.end(), span.category) != categories.end()) {
      found.emplace_back(span.begin, span.end);
    }
  }
  return found;
}

Trace read_trace(const std::vector<fs::path>& files) {
  Trace trace;
  for (const Document& document : parse_all(files)) {
    for (size_t i = 0; i < document.events.size(); ++i) add_event(document, i, trace);
    for (const json& process : document.other.value("processes", json::array())) {
      if (!process.is_object()) continue;
      trace.lost_events += process.value("lost_events", int64_t{0});
      trace.clock_error = std::max(trace.clock_error, process.value("clock_error_us", 0.0));
    }
  }
  bool any = false;
  for (auto& [pid, rank] : trace.ranks) {
    std::stable_sort(rank.spans.begin(), rank.spans.end(),
                     [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
    any |= !rank.spans.empty();
  }
  if (!any) fail(files.front(), "has no spans: nothing to show");
  return trace;
}

void join_traces(const std::vector<fs::path>& files, const fs::path& output) {
  std::vector<Document> documents = parse_all(files);
  json joined = {{"displayTimeUnit", "ms"}, {"otherData", documents.front().other}};
  json& other = joined["otherData"];
  json events = json::array();
  for (Document& document : documents) {
    if (document.shift == 0 && document.other.contains("base_ns"))
      other["base_ns"] = document.other["base_ns"];
    if (&document != &documents.front()) {
      for (json& process : document.other["processes"]) other["processes"].push_back(std::move(process));
    }
    for (json& event : document.events) {
      if (event.contains("ts") && event["ts"].is_number()) {
        event["ts"] = event["ts"].get<double>() + document.shift;
      }
      events.push_back(std::move(event));
    }
  }
  joined["traceEvents"] = std::move(events);
  write_file_atomically(output, dump_json(joined) + "\n");
}

}  // namespace lockstep::tools
