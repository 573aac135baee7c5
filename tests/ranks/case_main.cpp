// main() of GoogleTest programs whose cases run in one process.
#include "lockstep/base/main.h"
#include "tests/ranks/journal.h"

int main(int argc, char** argv) {
  return lockstep::run_main(argv[0], [&] {
    ::testing::InitGoogleTest(&argc, argv);
    lockstep::testing::keep_journal();
    return lockstep::testing::run_all_cases();
  });
}
