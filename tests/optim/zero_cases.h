// What the cases of the sharded optimizers have in common.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {

/// Writes each rank's results into a file of `directory`, named after the rank.
void write_parity(const std::string& directory);

using Cases = std::map<std::string, std::function<void()>>;
Cases fused_zero_cases();
Cases zero_join_cases();

}  // namespace lockstep::testing
