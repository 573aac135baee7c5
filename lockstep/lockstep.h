// All of Lockstep's public interface. A source that wants to compile quickly includes the rooms' own headers
// instead.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/pad_batch.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/text_table.h"
#include "lockstep/data/train_sampler.h"
#include "lockstep/models/bert.h"
#include "lockstep/models/toy.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/text/bert_tokenizer.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_arguments.h"
