// TrainingArguments.lr_scheduler_kwargs: arguments of a learning-rate schedule as a JSON object.
#pragma once

#include <string>

#include "lockstep/optim/lr_schedule.h"

namespace lockstep {

/// Sets the fields of `options` that `json` names, as transformers' lr_scheduler_kwargs: {"num_cycles": 2}. An
/// empty text sets none. Throws ValueError for what is no JSON object, and for names, types and values that
/// no schedule has.
void read_lr_scheduler_kwargs(const std::string& json, LRScheduleOptions& options);
/// Sets the options of reduce_lr_on_plateau in the same way: {"factor": 0.5, "patience": 2}.
void read_lr_scheduler_kwargs(const std::string& json, ReduceLROnPlateauOptions& options);

}  // namespace lockstep
