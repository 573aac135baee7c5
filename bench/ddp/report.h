// What `lockstep bench ddp` found, as text and as JSON.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/ddp/contestants.h"

namespace lockstep::bench_ddp {

/// Samples by the contestant's name; those of one round stand at the same place in each list.
using Samples = std::map<std::string, std::vector<Sample>>;

std::string text_of(const Options& options, const Samples& samples);
/// One object per line: one for each contestant, then one for each thing that DDP is said to cost.
std::string json_of(const Options& options, const Samples& samples);

}  // namespace lockstep::bench_ddp
