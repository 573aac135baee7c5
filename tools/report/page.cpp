#include "tools/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "tools/report/page_parts.h"

namespace lockstep::tools {
namespace {

std::string quoted(const std::string& text) { return dump_json(text, {.replace_invalid_utf8 = true}); }

void append_number(std::string& out, double value, int digits) {
  if (std::isnan(value)) {
    out += "null";
  } else {
    fmt::format_to(std::back_inserter(out), "{:.{}g}", value, digits);
  }
}

void append_time(std::string& out, double seconds) {
  fmt::format_to(std::back_inserter(out), "{:.7g}", std::round(seconds * 1e3) / 1e3);
}

template <class Values, class Append>
std::string format_array(const Values& values, const Append& append) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ',';
    append(text, value);
  }
  return text + "]";
}

/// A run's curves as JSON. Curves that stand in the same records share an axis.
class Curves {
 public:
  Curves(double start, size_t limit) : start_(start), limit_(limit) {}

  void add(const History& history, int rank) {
    known_.clear();
    has_times_ = history.times.size() == history.steps.size();
    for (const auto& [name, series] : history.series) add_series(history, rank, name, series);
    if (rank == 0) add_rates(history);
  }
  std::string axes() const { return "[" + axes_ + "]"; }
  std::string series() const { return "[" + series_ + "]"; }

 private:
  struct Known {
    const std::vector<uint32_t>* records;
    size_t axis;
  };

  size_t add_axis(const std::vector<double>& steps, const std::vector<double>& times) {
    if (!axes_.empty()) axes_ += ",\n";
    axes_ += "{\"step\":" +
             format_array(steps, [](std::string& out, double step) { append_number(out, step, 9); });
    if (!times.empty()) axes_ += ",\"time\":" + format_array(times, append_time);
    axes_ += '}';
    return number_of_axes_++;
  }

  size_t choose_axis(const History& history, const Series& series, const std::vector<Bucket>& buckets) {
    for (const Known& known : known_) {
      if (*known.records == series.records) return known.axis;
    }
    std::vector<double> steps, times;
    for (const Bucket& bucket : buckets) {
      const size_t middle = series.records[(bucket.first + bucket.last) / 2];
      steps.push_back(static_cast<double>(history.steps[middle]));
      if (has_times_) times.push_back(history.times[middle] - start_);
    }
    known_.push_back({&series.records, add_axis(steps, times)});
    return known_.back().axis;
  }

  void begin_series(const std::string& name, int rank, size_t axis) {
    if (!series_.empty()) series_ += ",\n";
    series_ += "{\"name\":" + quoted(name) + fmt::format(",\"rank\":{},\"axis\":{},\"mean\":", rank, axis);
  }

  void add_series(const History& history, int rank, const std::string& name, const Series& series) {
    const auto buckets = condense(series.values, limit_);
    begin_series(name, rank, choose_axis(history, series, buckets));
    const auto values_of = [&](double Bucket::*value) {
      return format_array(
          buckets, [&](std::string& out, const Bucket& bucket) { append_number(out, bucket.*value, 5); });
    };
    series_ += values_of(&Bucket::mean);
    if (buckets.size() < series.values.size()) {
      series_ += ",\"low\":" + values_of(&Bucket::min) + ",\"high\":" + values_of(&Bucket::max);
    }
    size_t bad = 0, first_bad = 0, least = series.values.size(), greatest = least;
    double last = std::nan("");
    for (size_t i = 0; i < series.values.size(); ++i) {
      const double value = series.values[i];
      if (std::isnan(value)) {
        if (bad++ == 0) first_bad = i;
        continue;
      }
      last = value;
      if (least == series.values.size() || value < series.values[least]) least = i;
      if (greatest == series.values.size() || value > series.values[greatest]) greatest = i;
    }
    series_ += ",\"last\":";
    append_number(series_, last, 8);
    const auto add_extreme = [&](const char* key, size_t at) {
      if (at == series.values.size()) return;
      series_ += fmt::format(",\"{}\":[", key);
      append_number(series_, series.values[at], 8);
      series_ += fmt::format(",{}]", history.steps[series.records[at]]);
    };
    add_extreme("least", least);
    add_extreme("greatest", greatest);
    if (bad > 0) series_ += fmt::format(",\"bad\":[{},{}]", bad, history.steps[series.records[first_bad]]);
    series_ += '}';
  }

  /// Where nobody has logged the speed, it follows from the times of the records.
  void add_rates(const History& history) {
    const Series* longest = nullptr;
    std::string name;
    for (const auto& [each, series] : history.series) {
      if (each.find("steps_per_second") != each.npos && each.starts_with("train/")) return;
      if (!longest || series.records.size() > longest->records.size()) {
        longest = &series;
        name = each;
      }
    }
    const auto rates = step_rates(history, history.series.contains("train/loss") ? "train/loss" : name,
                                  std::min<size_t>(limit_, 200));
    if (rates.size() < 2) return;
    std::vector<double> steps, times, values;
    for (const Rate& rate : rates) {
      steps.push_back(rate.step);
      times.push_back(rate.time - start_);
      values.push_back(rate.per_second);
    }
    begin_series("steps_per_second", 0, add_axis(steps, times));
    series_ += format_array(values, [](std::string& out, double value) { append_number(out, value, 5); });
    series_ += ",\"last\":";
    append_number(series_, values.back(), 5);
    series_ += '}';
  }

  double start_;
  size_t limit_;
  bool has_times_ = false;
  std::vector<Known> known_{};
  size_t number_of_axes_ = 0;
  std::string axes_{}, series_{};
};

std::string format_object(const Texts& texts) {
  std::string text = "{";
  for (const auto& [name, value] : texts) {
    text += (text.size() > 1 ? "," : "") + quoted(name) + ":" + quoted(value);
  }
  return text + "}";
}

std::string number_text(double value) {
  std::string text;
  append_number(text, value, 6);
  return text;
}

std::string format_checkpoints(const RunDirectory& run) {
  return format_array(run.checkpoints, [](std::string& out, const SavedCheckpoint& saved) {
    out += fmt::format("{{\"name\":{},\"step\":{},\"bytes\":{},\"ranks\":{},\"written\":{:.0f},\"best\":{}",
                       quoted(saved.name), saved.step, saved.bytes, saved.world_size, saved.written,
                       saved.is_best);
    if (!saved.problem.empty()) out += ",\"problem\":" + quoted(saved.problem);
    out += '}';
  });
}

std::string format_time_parts(const RunDirectory& run) {
  return format_array(run.time_parts, [](std::string& out, const TimeParts& parts) {
    out += "{\"rank\":" + quoted(parts.rank) + ",\"source\":" + quoted(parts.source) + ",\"parts\":";
    out += format_array(parts.parts, [](std::string& each, const auto& part) {
      each += "[" + quoted(part.first) + ",";
      append_number(each, part.second, 6);
      each += ']';
    });
    out += '}';
  });
}

std::string format_events(const RunDirectory& run) {
  return format_array(run.events.events, [](std::string& out, const ReportedEvent& event) {
    out += fmt::format("[{:.3f},{},{},{}]", event.time, quoted(event.name), quoted(event.text),
                       event.is_trouble ? 1 : 0);
  });
}

std::string run_json(const RunDirectory& run, size_t limit) {
  Curves curves(run.started.value_or(0), limit);
  for (const auto& [rank, history] : run.ranks) curves.add(history, rank);
  Texts results;
  std::string numbers = "{";
  for (const auto& [name, value] : run.results) {
    results[name] = number_text(value);
    if (numbers.size() > 1) numbers += ',';
    numbers += quoted(name) + ":" + (std::isfinite(value) ? number_text(value) : "null");
  }
  const auto time = [](const std::optional<double>& at) { return at ? fmt::format("{:.3f}", *at) : "null"; };
  const std::string end =
      fmt::format(",\"status\":{},\"detail\":{},\"kind\":{},\"error\":{},\"duration\":{},\"max_steps\":{}",
                  quoted(run.status), quoted(run.detail), quoted(run.status_kind), quoted(run.error),
                  time(run.duration), run.max_steps ? std::to_string(*run.max_steps) : "null");
  return fmt::format("{{\"name\":{},\"id\":{},\"directory\":{},\"source\":{}", quoted(run.name),
                     quoted(run.id), quoted(run.path.string()), quoted(run.source)) +
         end +
         fmt::format(",\"started\":{},\"ended\":{},\"ranks\":{},\"steps\":{},\"points\":{},\"damaged\":{},\n",
                     time(run.started), time(run.ended), run.world_size, run.steps, run.points(),
                     run.damaged_lines) +
         "\"axes\":" + curves.axes() + ",\n\"series\":" + curves.series() +
         ",\n\"arguments\":" + format_object(run.arguments) +
         ",\n\"environment\":" + format_object(run.environment) + ",\n\"results\":" + numbers +
         "},\n\"results_text\":" + format_object(results) +
         fmt::format(",\n\"events_left_out\":{},\"damaged_events\":{},\"events\":", run.events.left_out,
                     run.events.damaged_lines) +
         format_events(run) + ",\n\"checkpoints\":" + format_checkpoints(run) +
         ",\n\"time\":" + format_time_parts(run) + "}";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result += c;
    }
  }
  return result;
}

/// JSON that cannot end the element in which it stands.
std::string inside_script(std::string json) {
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  return result;
}

std::string filled(std::string_view page, const std::vector<std::pair<std::string, std::string>>& parts) {
  std::string result;
  while (true) {
    size_t at = page.size();
    const std::pair<std::string, std::string>* found = nullptr;
    for (const auto& part : parts) {
      const size_t where = page.find("@" + part.first + "@");
      if (where < at) {
        at = where;
        found = &part;
      }
    }
    result += page.substr(0, at);
    if (found == nullptr) return result;
    result += found->second;
    page.remove_prefix(at + found->first.size() + 2);
  }
}

void name_apart(std::vector<RunDirectory>& runs) {
  std::multiset<std::string> names;
  for (const auto& run : runs) names.insert(run.name);
  for (auto& run : runs) {
    if (names.count(run.name) > 1) run.name += fmt::format(" ({})", run.path.lexically_normal().string());
  }
}

}  // namespace

std::string report_page(std::vector<RunDirectory> runs, const PageOptions& options) {
  name_apart(runs);
  std::string title = options.title;
  for (const auto& run : runs) {
    if (options.title.empty()) title += (title.empty() ? "" : ", ") + run.name;
  }
  for (size_t limit = options.points; limit >= 2; limit = limit * 2 / 3) {
    std::string data =
        fmt::format("{{\"generated\":{:.0f},\"limit\":{},\"runs\":[", options.generated, limit);
    for (const auto& run : runs) data += (data.ends_with('[') ? "" : ",\n") + run_json(run, limit);
    std::string page = filled(kPageHtml, {{"TITLE", escaped(title)},
                                          {"STYLE", std::string(kPageCss)},
                                          {"DATA", inside_script(data + "]}")},
                                          {"SCRIPT", std::string(kPageJs)}});
    if (page.size() < options.most_bytes) return page;
  }
  throw ValueError(fmt::format("the page would be larger than {} MB with two points a curve; give fewer runs",
                               options.most_bytes / 1'000'000));
}

}  // namespace lockstep::tools
