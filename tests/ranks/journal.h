// What became of each GoogleTest case of a process, written down as it happens, so that it is known however
// the process ends. run_cases.py reads it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace lockstep::testing {

/// How the reason of a case begins that is not for this run; any other skip is one that the machine is to
/// blame for.
inline constexpr const char* kOnlyIf = "only if ";

/// Adds the journal to GoogleTest's listeners. Its file is LOCKSTEP_TEST_JOURNAL followed by the rank;
/// without that variable no file is written and GoogleTest prints as usual. A failure ends the process at the
/// end of its case, if it is a rank or keeps a journal: a rank that failed leaves its peers at once, and
/// nothing that a failed case leaves behind can disturb the next case. run_cases.py then starts the cases
/// that are left. A case that takes longer than five minutes ends the process by SIGALRM.
///
/// `check` runs after each case that has passed; what it throws makes the case a failed one.
void keep_journal(const std::function<void()>& check = [] {});

/// RUN_ALL_TESTS(), which fails where no case matched the filter.
int run_all_cases();

}  // namespace lockstep::testing
