// What the ranks tell each other at the end of a pass in which some gradient did not come, and what follows
// from it: a pure decision, the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/ddp/pass.h"

namespace lockstep {

/// What became of a parameter's gradient on a rank.
enum class GradientSeen : char {
  ready = '1',
  missing = '0',
  earlier = 'e',  ///< it came under no_sync(), and not in this pass
};

/// A rank's report: its role, then a GradientSeen for each parameter.
inline size_t report_size(size_t parameters) { return 1 + parameters; }

struct PassVerdict {
  enum class Outcome : uint8_t {
    averaged,   ///< parameters that some rank has used get the average
    refused,    ///< gradients are missing, which is an error
    failed,     ///< ranks failed: nobody's gradients are of use
    changed,    ///< none failed, but modules are no longer what was wrapped: an error
    untouched,  ///< every rank failed before its backward: what gradients held before is all there is
  };
  Outcome outcome = Outcome::averaged;
  std::vector<int> failed_ranks{};                ///< failed or absent
  std::vector<std::vector<int>> lacking_ranks{};  ///< by parameter: those without a gradient in this pass
  std::vector<bool> is_used{};  ///< by parameter: has some rank a gradient since the last pass?
};

/// `reports`: one per rank. `allows_missing`: find_unused_parameters or static_graph.
PassVerdict decide(const std::vector<std::string_view>& reports, bool allows_missing);

/// For an error: "right.weight (rank 0, 2); right.bias (rank 1)", at most 20 names.
std::string describe_missing(const PassVerdict& verdict, const std::vector<std::string>& names);

std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace lockstep
