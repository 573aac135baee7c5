// What the cases of a lockstep_rank_test need: TEST() bodies that all ranks of a job run together.
//
// The job is the same from case to case. A case that breaks its group, or leaves the ranks out of step, ends
// with destroy(): the next case joins again.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "lockstep/comm/init.h"
#include "tests/ranks/check.h"
#include "tests/ranks/journal.h"

namespace lockstep::testing {

/// The job, joined anew where the case before has left it.
World& world();

/// At the beginning of a case that has no meaning with every number of ranks or backend. The condition must
/// have the same value on all ranks. A case that is left out of all runs of its program counts as failed.
#define ONLY_IF(condition) \
  if (!(condition)) GTEST_SKIP() << ::lockstep::testing::kOnlyIf << #condition

/// Runs `call`, which must throw an E whose message contains `part`.
template <class E>
void check_throws(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const E& error) {
    if (std::string(error.what()).find(part) == std::string::npos) {
      throw std::runtime_error("the error lacks \"" + part + "\": " + error.what());
    }
    return;
  }
  throw std::runtime_error("no error; expected one with \"" + part + "\"");
}

}  // namespace lockstep::testing
