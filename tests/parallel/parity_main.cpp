// Trainings that Python tests compare with their own: `ddp_parity_runs parity|hook_parity|resnet18_parity`.
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "tests/parallel/parity_print.h"

int main(int argc, char** argv) {
  return lockstep::run_main(argv[0], [&] {
    using namespace lockstep::testing;
    const std::string run = argc == 2 ? argv[1] : "";
    if (run == "parity") {
      parity();
    } else if (run == "hook_parity") {
      hook_parity();
    } else if (run == "resnet18_parity") {
      resnet18_parity();
    } else {
      throw lockstep::ValueError("name one run: parity, hook_parity or resnet18_parity");
    }
    return 0;
  });
}
