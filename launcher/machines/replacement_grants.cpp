#include "launcher/machines/replacement_grants.h"

#include <fmt/format.h>

namespace lockstep::launcher {

ReplacementGrants::Answer ReplacementGrants::ask() {
  if (count_ >= most_) return {.refusal = fmt::format("--max-replacements {} are used up", most_)};
  ++count_;
  return {.epoch = ++epoch_};
}

}  // namespace lockstep::launcher
