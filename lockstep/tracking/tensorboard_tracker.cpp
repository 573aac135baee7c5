#include "lockstep/tracking/tensorboard_tracker.h"

#include <sysexits.h>

#include <fmt/format.h>
#include <algorithm>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <type_traits>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/host_name.h"
#include "lockstep/tracking/formats/event_file.h"
#include "lockstep/tracking/formats/json_text.h"

namespace lockstep {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;

// Field numbers of TensorBoard's messages.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kHisto = 5, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr int kPluginData = 1, kPluginName = 1, kContent = 2;
}
namespace histo {
constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6, kBucket = 7;
}
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kStringVal = 8, kDim = 2, kSize = 1, kString = 7;
}
namespace hparams {
constexpr int kStartInfo = 3, kEndInfo = 4;                  // of the plugin's data
constexpr int kHparams = 1, kGroupName = 4, kStartTime = 5;  // of the start
constexpr int kStatus = 1, kEndTime = 2;                     // of the end
constexpr int kKey = 1, kItsValue = 2;                       // of an entry of the map
constexpr int kNumber = 2, kText = 3, kBool = 4;             // of its value
constexpr int kUnknown = 0, kSuccess = 1, kFailure = 2;
}  // namespace hparams

constexpr std::string_view kStartTag = "_hparams_/session_start_info";
constexpr std::string_view kEndTag = "_hparams_/session_end_info";
constexpr const char* kSummaryTag = "summary";

struct EventParts {
  int64_t step = 0;
  std::string_view tag{};  // of the first value
};

EventParts parse_event(std::string_view bytes) {
  EventParts parts;
  pbf_reader reader(bytes.data(), bytes.size());
  while (reader.next()) {
    if (reader.tag() == event::kStep) {
      parts.step = reader.get_int64();
    } else if (reader.tag() == event::kSummary) {
      pbf_reader values = reader.get_message();
      if (!values.next(summary::kValue)) continue;
      pbf_reader first = values.get_message();
      if (!first.next(value::kTag)) continue;
      const auto tag = first.get_view();
      parts.tag = {tag.data(), tag.size()};
    } else {
      reader.skip();
    }
  }
  return parts;
}

std::string version_event(double time) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, time);
  writer.add_string(event::kFileVersion, "brain.Event:2");
  return bytes;
}

void add_metadata(pbf_writer& value_writer, std::string_view plugin, const std::string& content) {
  pbf_writer metadata_writer(value_writer, value::kMetadata);
  pbf_writer data(metadata_writer, metadata::kPluginData);
  data.add_string(metadata::kPluginName, plugin.data(), plugin.size());
  if (!content.empty()) data.add_bytes(metadata::kContent, content);
}

void add_text(pbf_writer& values, const std::string& name, std::string_view text) {
  pbf_writer value_writer(values, summary::kValue);
  value_writer.add_string(value::kTag, name);
  {
    pbf_writer tensor_writer(value_writer, value::kTensor);
    tensor_writer.add_enum(tensor::kDtype, tensor::kString);
    {
      pbf_writer shape(tensor_writer, tensor::kShape);
      pbf_writer dim(shape, tensor::kDim);
      dim.add_int64(tensor::kSize, 1);
    }
    tensor_writer.add_bytes(tensor::kStringVal, text.data(), text.size());
  }
  add_metadata(value_writer, "text", {});
}

void add_setting(pbf_writer& start, const std::string& name, const TrackedSetting& setting) {
  pbf_writer entry(start, hparams::kHparams);
  entry.add_string(hparams::kKey, name);
  pbf_writer its_value(entry, hparams::kItsValue);
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          its_value.add_bool(hparams::kBool, held);
        } else if constexpr (std::is_same_v<T, std::string>) {
          its_value.add_string(hparams::kText, held);
        } else {
          its_value.add_double(hparams::kNumber, static_cast<double>(held));
        }
      },
      setting);
}

/// A summary of one value that only its plugin reads.
std::string plugin_summary(std::string_view tag, const std::string& content) {
  std::string bytes;
  pbf_writer values(bytes);
  pbf_writer value_writer(values, summary::kValue);
  value_writer.add_string(value::kTag, tag.data(), tag.size());
  add_metadata(value_writer, "hparams", content);
  value_writer.commit();
  return bytes;
}

/// This run's file, or where there is none the name of a new one.
std::filesystem::path find_file(const std::filesystem::path& directory, const std::string& id, double now) {
  const std::string start = "events.out.tfevents.", end = "." + id;
  std::vector<std::filesystem::path> found;
  if (std::filesystem::is_directory(directory)) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(start) && name.ends_with(end)) found.push_back(entry.path());
    }
  }
  if (!found.empty()) return *std::max_element(found.begin(), found.end());
  std::string seconds = std::to_string(static_cast<int64_t>(now));
  seconds.insert(0, 10 - std::min<size_t>(10, seconds.size()), '0');
  return directory / (fmt::format("{}{}.{}{}", start, seconds, host_name(), end));
}

}  // namespace

void TensorBoardTracker::start(const TrackedRun& run) {
  check_run_id(run.id);
  run_ = run;
  started_ = wall_seconds();
  settings_.clear();
  results_.clear();
  session_start_.clear();
  has_settings_ = false;
  last_step_ = 0;
  const auto path = find_file(directory_, run.id, started_);
  std::string kept;
  if (run.resume_step) {
    KeptRecords records(run);
    read_event_records(read_file_or_nothing(path), [&](std::string_view bytes) {
      const auto [step, tag] = parse_event(bytes);
      if (tag == kStartTag) session_start_ = bytes;
      const bool ends_or_begins = tag == kStartTag || tag == kEndTag || tag == kSummaryTag;
      if (ends_or_begins || (!tag.empty() && !records.keep(step))) return;
      append_event_record(kept, bytes);
      last_step_ = std::max(last_step_, step);
    });
  }
  if (kept.empty()) append_event_record(kept, version_event(started_));
  file_ = RecordFile(path, kept);
}

/// What summary_ holds.
void TensorBoardTracker::write_event(int64_t step) {
  event_.clear();
  pbf_writer writer(event_);
  writer.add_double(event::kWallTime, wall_seconds());
  writer.add_int64(event::kStep, step);
  writer.add_message(event::kSummary, summary_);
  record_.clear();
  append_event_record(record_, event_);
  file_.append(record_);
  last_step_ = std::max(last_step_, step);
}

// TensorBoard shows a run's first settings: they are written once they are complete, before the first record.
void TensorBoardTracker::write_settings() {
  if (has_settings_) {
    std::string content;
    {
      pbf_writer data(content);
      pbf_writer start(data, hparams::kStartInfo);
      for (const auto& [name, setting] : settings_) add_setting(start, name, setting);
      if (!run_.group.empty()) start.add_string(hparams::kGroupName, run_.name);
      start.add_double(hparams::kStartTime, started_);
    }
    summary_ = plugin_summary(kStartTag, content);
    has_settings_ = false;
    session_start_.clear();
    write_event(0);
  } else if (!session_start_.empty()) {
    record_.clear();
    append_event_record(record_, session_start_);
    session_start_.clear();
    file_.append(record_);
  }
}

void TensorBoardTracker::log(int64_t step, const TrackedValues& values) {
  if (values.empty()) return;
  write_settings();
  summary_.clear();
  pbf_writer writer(summary_);
  for (const auto& [name, number] : values) {
    pbf_writer value_writer(writer, summary::kValue);
    value_writer.add_string(value::kTag, name);
    value_writer.add_float(value::kSimpleValue, static_cast<float>(number));
  }
  write_event(step);
}

void TensorBoardTracker::log_text(int64_t step, const std::string& name, std::string_view text) {
  write_settings();
  summary_.clear();
  pbf_writer writer(summary_);
  add_text(writer, name, text);
  write_event(step);
}

void TensorBoardTracker::log_histogram(int64_t step, const std::string& name, const Histogram& histogram) {
  if (histogram.counts.empty()) return;
  write_settings();
  summary_.clear();
  {
    pbf_writer writer(summary_);
    pbf_writer value_writer(writer, summary::kValue);
    value_writer.add_string(value::kTag, name);
    pbf_writer histo_writer(value_writer, value::kHisto);
    histo_writer.add_double(histo::kMin, histogram.min);
    histo_writer.add_double(histo::kMax, histogram.max);
    histo_writer.add_double(histo::kNum, static_cast<double>(histogram.number));
    histo_writer.add_double(histo::kSum, histogram.sum);
    histo_writer.add_double(histo::kSumSquares, histogram.sum_squares);
    // A bucket is known by its upper limit; an empty one below the first tells where that begins.
    histo_writer.add_packed_double(histo::kBucketLimit, histogram.edges.begin(), histogram.edges.end());
    std::vector<double> buckets = {0};
    buckets.insert(buckets.end(), histogram.counts.begin(), histogram.counts.end());
    histo_writer.add_packed_double(histo::kBucket, buckets.begin(), buckets.end());
  }
  write_event(step);
}

void TensorBoardTracker::config(const TrackedSettings& settings) {
  for (const auto& [name, setting] : settings) settings_[name] = setting;
  has_settings_ = true;
}

void TensorBoardTracker::summary(const TrackedSettings& results) {
  for (const auto& [name, result] : results) results_[name] = result;
}

void TensorBoardTracker::finish(int exit_code) {
  write_settings();
  if (!results_.empty()) {
    std::string text = "| result | value |\n| --- | --- |\n";
    for (const auto& [name, result] : results_) {
      text += fmt::format("| {} | ", name);
      append_json(text, result, NotFinite::literal);
      text += " |\n";
    }
    log_text(last_step_, kSummaryTag, text);
  }
  std::string content;
  {
    pbf_writer data(content);
    pbf_writer end(data, hparams::kEndInfo);
    const bool is_stopped = exit_code == EX_TEMPFAIL || exit_code > 128;  // saved, or by a signal
    end.add_enum(hparams::kStatus, exit_code == 0 ? hparams::kSuccess
                                   : is_stopped   ? hparams::kUnknown
                                                  : hparams::kFailure);
    end.add_double(hparams::kEndTime, wall_seconds());
  }
  summary_ = plugin_summary(kEndTag, content);
  write_event(0);
  file_.close();
}

}  // namespace lockstep
