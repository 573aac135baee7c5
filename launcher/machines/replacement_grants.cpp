#include "launcher/machines/replacement_grants.h"

#include <fmt/format.h>

namespace lockstep::launcher {

ReplacementGrants::Answer ReplacementGrants::ask(int ranks) {
  if (count_ >= most_) return {.refusal = fmt::format("--max-replacements {} are used up", most_)};
  if (count_ + ranks > most_) {
    return {.refusal = fmt::format("of --max-replacements {} only {} are left, and it had {} ranks", most_,
                                   most_ - count_, ranks)};
  }
  count_ += ranks;
  return {.epoch = ++epoch_};
}

}  // namespace lockstep::launcher
