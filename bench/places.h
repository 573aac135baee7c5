// Rows of the tables of programs that measure: words that stand by their place.
#pragma once

#include <string_view>

#include "lockstep/cli/flag.h"

namespace lockstep::benchmarks {

template <class Values>
constexpr Flag<Values> place(std::string_view name, FlagMember<Values> member, std::string_view words,
                             FlagCheck check = {}) {
  return {
      .name = name, .member = member, .check = check, .words = words, .is_required = true, .is_place = true};
}

/// A whole number, 1 or more.
template <class Values>
constexpr Flag<Values> count(std::string_view name, FlagMember<Values> member, std::string_view words) {
  return place<Values>(name, member, words, FlagCheck::at_least(1, "1 or more"));
}

}  // namespace lockstep::benchmarks
