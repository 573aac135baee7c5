#include "launcher/machines/replacement_grants.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::launcher {

ReplacementGrants::Answer ReplacementGrants::ask(int ranks) {
  if (count_ >= most_) return {.refusal = fmt::format("--max-replacements {} are used up", most_)};
  if (count_ + ranks > most_) {
    return {.refusal = fmt::format("of --max-replacements {} only {} are left, and it had {} ranks", most_,
                                   most_ - count_, ranks)};
  }
  count_ += ranks;
  granted_.push_back(ranks);
  return {.epoch = static_cast<uint32_t>(granted_.size())};
}

void ReplacementGrants::take_back(uint32_t epoch) {
  if (epoch == 0) return;
  for (size_t each = epoch - 1; each < granted_.size(); ++each) count_ -= std::exchange(granted_[each], 0);
}

}  // namespace lockstep::launcher
