#include "launcher/machines/replacement_grants.h"

#include <fmt/format.h>

namespace lockstep::launcher {

void ReplacementGrants::begin_round() {
  epoch_ = 0;
  under_way_.reset();
}

ReplacementGrants::Answer ReplacementGrants::ask(int rank) {
  if (count_ >= most_) return {.refusal = fmt::format("--max-replacements {} are used up", most_)};
  if (under_way_) {
    // Connections between machines are made anew then, which nobody can interrupt.
    return {
        .refusal =
            *under_way_ == rank
                ? "it had not got the job's state yet"
                : fmt::format("rank {} is being replaced, and on several machines only one rank is at a time",
                              *under_way_)};
  }
  under_way_ = rank;
  ++count_;
  return {.epoch = ++epoch_};
}

void ReplacementGrants::came_back(int rank) {
  if (under_way_ == rank) under_way_.reset();
}

}  // namespace lockstep::launcher
