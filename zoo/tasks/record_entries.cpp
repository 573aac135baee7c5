#include "lockstep/zoo/tasks/record_entries.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::tasks {
namespace {

using checkpoint::RecordKind;
using checkpoint::RunRecord;

constexpr const char* kTrainData = "train_data";
constexpr const char* kValidationData = "validation_data";
constexpr const char* kHash = ".hash";

void record_data(RunRecord& record, const std::string& name, const DataFingerprint& data) {
  record.set(name + ".rows", RecordKind::data, data.rows);
  record.set(name + ".columns", RecordKind::data, data.columns);
  record.set(name + kHash, RecordKind::data, data.hash);
}

}  // namespace

void record_train_data(RunRecord& record, const DataFingerprint& data) {
  record_data(record, kTrainData, data);
}

void record_validation_data(RunRecord& record, const std::optional<DataFingerprint>& data,
                            const RunRecord& saved) {
  const std::string name = kValidationData;
  const bool resumes = !saved.empty();
  if (data && (!resumes || saved.has(name + kHash))) return record_data(record, name, *data);
  for (const auto& [entry, value] : saved.entries()) {
    if (entry.starts_with(name + ".")) record.set_json(entry, value.kind, value.json);
  }
}

void record_tokenizer(RunRecord& record, const std::string& name,
                      const std::map<std::string, std::string>& files, int64_t size) {
  checkpoint::Hash hash;
  for (const auto& [file, text] : files) {
    hash.update(file);
    hash.update(std::string_view("\0", 1));
    hash.update(text);
    hash.update(std::string_view("\0", 1));
  }
  record.set(name + kHash, RecordKind::model, hash.hex());
  record.set(name + ".size", RecordKind::model, size);
}

void record_model_config(RunRecord& record, std::string_view config_json,
                         const std::vector<std::string>& left_out) {
  auto config = parse_json(config_json);
  for (const auto& key : left_out) config.erase(key);
  record.set_json("model_config", RecordKind::model, dump_json(config));
}

}  // namespace lockstep::tasks
