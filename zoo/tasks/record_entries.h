// What recipes write into the record of a run: data, tokenizer, model (docs/trainer/resume.md).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/data_fingerprint.h"
#include "lockstep/checkpoint/run_record.h"

namespace lockstep::tasks {

/// Entries train_data.rows, .columns and .hash.
void record_train_data(checkpoint::RunRecord& record, const DataFingerprint& data);

/// Does it under validation_data. A resume may add a validation set or go on without one, so only two sets are compared:
/// otherwise `record` takes what `saved`, the checkpoint's record, says. `data`: nothing if there is no validation.
void record_validation_data(checkpoint::RunRecord& record, const std::optional<DataFingerprint>& data,
                            const checkpoint::RunRecord& saved);

/// Entry `name`.hash, over the tokenizer's files by name, and `name`.size.
void record_tokenizer(checkpoint::RunRecord& record, const std::string& name,
                      const std::map<std::string, std::string>& files, int64_t size);

/// Entry model_config: a config.json without the keys in `left_out`, such as the labels, which are an entry of their own.
void record_model_config(checkpoint::RunRecord& record, std::string_view config_json,
                         const std::vector<std::string>& left_out = {});

}  // namespace lockstep::tasks
