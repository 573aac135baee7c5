// What the ranks tell each other when a step has failed, and what follows: pure decisions, the same on every rank.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::detail {

/// One rank's part in a step's failure.
struct FailureReport {
  enum class Kind : uint8_t {
    none,        ///< it learned of the failure from others
    skipped,     ///< skip_step()
    collective,  ///< a collective failed, perhaps because another rank had failed
    own,         ///< an exception of its own
  };
  Kind kind = Kind::none;
  std::string place{};                ///< such as "in the forward of Net"
  std::string what{};                 ///< its exception's message
  std::vector<std::string> groups{};  ///< names of the groups that it has

  nlohmann::json to_json() const;
  static FailureReport from_json(const nlohmann::json& json);
};

struct FailureVerdict {
  bool is_skipped = false;          ///< nobody has failed: some rank has called skip_step()
  std::vector<int> failed_ranks{};  ///< first: those whose failure is not another's consequence
  std::string place{};              ///< of the first of them
  std::string message{};            ///< of the error that all ranks throw
};

/// `reports`: by rank.
FailureVerdict judge(const std::vector<FailureReport>& reports);

/// What a rank has written since the step began: for each thing that all ranks have alike, such as the weights of a model,
/// in the same order on all ranks.
struct WritesReport {
  /// How many of a model's trainable weights are in optimizers that the step was told of, and whose state all ranks can get.
  enum class Named : uint8_t { none, some, all };
  bool has_joined = false;  ///< it has left join()'s body, and its weights are not the others' any more
  std::vector<bool> have_changed{};  ///< models come first
  std::vector<Named> named{};        ///< by model
};

/// If some ranks have written what others have not: whose state all are to have, that of the lowest rank which has written
/// least.
std::optional<int> rank_to_copy(const std::vector<WritesReport>& reports);

/// How all ranks get the same weights again.
struct Leveling {
  int source = 0;  ///< the rank to copy
  /// Not if a rank has joined, or a model that differs has weights in other optimizers.
  bool is_possible = false;
  bool is_undone = false;      ///< the source has written nothing of what differs
  std::vector<bool> models{};  ///< those to copy: some of their weights are in an optimizer that is copied
};

/// Nothing: no rank has written what others have not.
std::optional<Leveling> plan_leveling(const std::vector<WritesReport>& reports);

/// Those of `names` that every rank of `ranks` (of the reports) has.
bool is_everywhere(const std::string& name, const std::vector<int>& ranks,
                   const std::vector<FailureReport>& reports);

}  // namespace lockstep::detail
