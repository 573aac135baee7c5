#include "lockstep/timeline/chrome_trace.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json.h"

namespace lockstep::timeline {
namespace {

/// Rows below the threads': operations in progress.
constexpr size_t kCommunicationRow = 1000;

std::string json_text(std::string_view text) { return dump_json(text, {.replace_invalid_utf8 = true}); }

/// The format wants microseconds.
std::string microseconds(int64_t nanoseconds) {
  std::string digits = std::to_string(std::max<int64_t>(nanoseconds, 0));
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  return digits.insert(digits.size() - 3, ".");
}

const char* category(Kind kind) {
  switch (kind) {
    case Kind::user:
      return "user";
    case Kind::data:
      return "data";
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::optimizer:
      return "optimizer";
    case Kind::wait:
      return "wait";
    case Kind::collective:
      return "collective";
    case Kind::reduce:
      return "reduce";
    case Kind::ready:
      return "ready";
  }
  return "user";
}

std::string name_of(const Event& event) {
  const std::string_view whole(event.name.data(), event.name.size());
  std::string name(whole.substr(0, whole.find('\0')));
  if (event.bucket != kNoBucket) name += fmt::format(" bucket {}", event.bucket);
  return name;
}

class Writer {
 public:
  Writer(int64_t base, const std::function<void(std::string_view)>& append) : base_(base), append_(append) {}

  void metadata(int rank, std::string_view what, const std::string& arguments, size_t row = 0) {
    begin();
    line_ += fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"", rank, row);
    line_ += what;
    line_ += fmt::format("\",\"args\":{{{}}}}}", arguments);
    flush();
  }
  void name_row(int rank, size_t row, const std::string& name) {
    metadata(rank, "thread_name", "\"name\":" + json_text(name), row);
    metadata(rank, "thread_sort_index", fmt::format("\"sort_index\":{}", row), row);
  }
  void event(int rank, size_t row, const Event& event) {
    begin();
    const bool is_moment = event.kind == Kind::ready;
    line_ += is_moment ? "{\"ph\":\"i\",\"s\":\"t\"" : "{\"ph\":\"X\"";
    line_ += fmt::format(",\"pid\":{},\"tid\":{},\"cat\":\"{}\",\"name\":{},\"ts\":{}", rank, row,
                         category(event.kind), json_text(name_of(event)), microseconds(event.begin - base_));
    if (!is_moment) line_ += ",\"dur\":" + microseconds(event.end - event.begin);
    std::string arguments;
    if (event.bucket != kNoBucket) arguments += fmt::format("\"bucket\":{}", event.bucket);
    if (event.bytes != kNoBytes) {
      arguments += (arguments.empty() ? "" : ",") + (fmt::format("\"bytes\":{}", event.bytes));
    }
    if (!arguments.empty()) line_ += fmt::format(",\"args\":{{{}}}", arguments);
    line_ += '}';
    flush();
  }

 private:
  void begin() {
    line_ = is_first_ ? "\n" : ",\n";
    is_first_ = false;
  }
  void flush() { append_(line_); }
  int64_t base_;
  const std::function<void(std::string_view)>& append_;
  std::string line_;
  bool is_first_ = true;
};

std::string summary(const std::vector<ProcessTrace>& processes, int64_t base) {
  std::string ranks;
  for (const ProcessTrace& process : processes) {
    ranks += fmt::format("{}{},\"host\":{},\"clock_error_us\":{},\"finished\":{},\"lost_events\":{}}}",
                         ranks.empty() ? "" : ",", fmt::format("{{\"rank\":{}", process.rank),
                         json_text(process.host), microseconds(process.clock_error),
                         process.finished ? "true" : "false", process.lost);
  }
  const int world_size = processes.empty() ? 0 : processes.front().world_size;
  // The base as text: readers that take numbers for floating-point ones would round it.
  return fmt::format("{{\"lockstep_timeline\":1,\"world_size\":{},\"base_ns\":\"{}\",\"processes\":[{}]}}",
                     world_size, base, ranks);
}

void write_rank(Writer& writer, int rank, const std::vector<const ProcessTrace*>& processes,
                bool several_hosts) {
  std::string name = fmt::format("rank {}", rank);
  if (several_hosts) name += " on " + processes.back()->host;
  writer.metadata(rank, "process_name", "\"name\":" + json_text(name));
  writer.metadata(rank, "process_sort_index", fmt::format("\"sort_index\":{}", rank));
  if (!processes.back()->finished) {
    writer.metadata(rank, "process_labels", "\"labels\":\"ended without leaving\"");
  }
  std::set<size_t> rows;
  std::vector<const Event*> in_progress;
  for (const ProcessTrace* process : processes) {
    for (size_t t = 0; t < process->threads.size(); ++t) {
      for (const Event& event : process->threads[t]) {
        if (event.kind == Kind::reduce) {
          in_progress.push_back(&event);
          continue;
        }
        if (rows.insert(t).second) writer.name_row(rank, t, fmt::format("thread {}", t));
        writer.event(rank, t, event);
      }
    }
  }
  std::stable_sort(in_progress.begin(), in_progress.end(),
                   [](const Event* a, const Event* b) { return a->begin < b->begin; });
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const Event* event : in_progress) spans.emplace_back(event->begin, event->end);
  const std::vector<size_t> places = assign_rows(spans);
  for (size_t i = 0; i < in_progress.size(); ++i) {
    const size_t row = kCommunicationRow + places[i];
    if (rows.insert(row).second) {
      const std::string number = places[i] == 0 ? "" : fmt::format(" {}", places[i] + 1);
      writer.name_row(rank, row, "communication" + number);
    }
    writer.event(rank, row, *in_progress[i]);
  }
}

}  // namespace

std::vector<size_t> assign_rows(const std::vector<std::pair<int64_t, int64_t>>& spans) {
  std::vector<size_t> rows;
  std::vector<int64_t> busy_until;
  for (const auto& [begin, end] : spans) {
    const auto free = std::find_if(busy_until.begin(), busy_until.end(),
                                   [begin = begin](int64_t until) { return until <= begin; });
    rows.push_back(static_cast<size_t>(free - busy_until.begin()));
    if (free == busy_until.end()) {
      busy_until.push_back(end);
    } else {
      *free = end;
    }
  }
  return rows;
}

void write_chrome_trace(const std::vector<ProcessTrace>& processes,
                        const std::function<void(std::string_view)>& append) {
  int64_t base = std::numeric_limits<int64_t>::max();
  std::map<int, std::vector<const ProcessTrace*>> by_rank;
  std::set<std::string> hosts;
  for (const ProcessTrace& process : processes) {
    by_rank[process.rank].push_back(&process);
    hosts.insert(process.host);
    for (const auto& thread : process.threads) {
      for (const Event& event : thread) base = std::min(base, event.begin);
    }
  }
  append(fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
                     summary(processes, base)));
  Writer writer(base, append);
  for (const auto& [rank, own] : by_rank) write_rank(writer, rank, own, hosts.size() > 1);
  append("\n]}\n");
}

}  // namespace lockstep::timeline
