// main() of the programs that lockstep_rank_test makes.
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "tests/ranks/journal.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

/// No rank begins the next case before all have passed this one.
void check_group() {
  if (!is_initialized()) return;
  try {
    default_world().barrier({.timeout = std::chrono::seconds(60)});
  } catch (const std::exception& error) {
    throw Error(
        "passed here, but the barrier behind the case failed (a case that breaks its group ends with "
        "destroy()): " +
        std::string(error.what()));
  }
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  return lockstep::run_main(argv[0], [&] {
    ::testing::InitGoogleTest(&argc, argv);
    if (argc > 1)
      throw lockstep::ValueError(std::string("there is no argument ") + argv[1] +
                                 "; give --gtest_filter=SUITE.CASE");
    lockstep::testing::keep_journal(lockstep::testing::check_group);
    if (!GTEST_FLAG_GET(list_tests)) lockstep::testing::world();
    return lockstep::testing::run_all_cases();
  });
}
