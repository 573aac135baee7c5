#include "lockstep/recovery/own_statistics.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

OwnStatistics::OwnStatistics(std::vector<at::Tensor> tensors, shm::SetupLog& log, size_t number)
    : tensors_(std::move(tensors)), vault_(log, number) {}

void OwnStatistics::keep(int64_t steps, bool is_end) {
  packed_.clear();
  for (const at::Tensor& tensor : tensors_) {
    const auto* const from = static_cast<const std::byte*>(tensor.const_data_ptr());
    packed_.insert(packed_.end(), from, from + tensor.nbytes());
  }
  if (committed_at_ >= 0 && packed_ == committed_) {
    written_at_ = committed_at_;
    return;
  }
  if (written_at_ == steps && packed_ == written_) return;
  if (is_end && written_at_ == steps) late_at_ = steps;
  StateDict state;
  state.scalars["is_end"] = is_end;
  state.tensors["statistics"] =
      at::from_blob(packed_.data(), {static_cast<int64_t>(packed_.size())}, at::TensorOptions(at::kByte));
  vault_.write_beside(committed_at_, steps, state);
  written_ = packed_;
  written_at_ = steps;
}

void OwnStatistics::commit(int64_t steps) {
  keep(steps, /*is_end=*/true);
  if (written_at_ == committed_at_) return;
  committed_at_ = written_at_;
  committed_ = written_;
}

void OwnStatistics::go_to(int64_t steps, const ProcessGroup& group, int donor) {
  // The ranks' statistics change in the same steps. Those of a step that has not ended do not count.
  const int64_t own = written_at_ <= steps ? written_at_ : committed_at_;
  const auto changed_at = broadcast_object(group, nlohmann::json(own), {.src = donor}).get<int64_t>();
  const bool has_any = vault_.has(changed_at);
  const StateDict state = has_any ? vault_.read(changed_at) : StateDict();
  const bool is_end = has_any && std::get<bool>(state.scalars.at("is_end"));
  const auto told = all_gather_object(
      group, {{"has", has_any}, {"is_end", is_end}, {"changed_late", late_at_ == changed_at}});
  const bool changed_late = std::any_of(
      told.begin(), told.end(), [](const nlohmann::json& of_rank) { return of_rank.at("changed_late"); });
  for (size_t r = 0; r < told.size(); ++r) {
    if (told[r].at("has") && (told[r].at("is_end") || !changed_late)) continue;
    throw Error(fmt::format(
        "Recovery: rank {} died in step {}, which others had ended, before its own running statistics were those of "
        "that step: a forward that changes them needs an averaging backward in the same step",
        r, steps));
  }
  const at::Tensor kept = state.tensors.at("statistics");
  const auto* from = static_cast<const std::byte*>(kept.const_data_ptr());
  committed_.assign(from, from + kept.nbytes());
  committed_at_ = written_at_ = changed_at;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

}  // namespace lockstep::detail
