// lockrun: starts the ranks of a job, watches them and ends them together.
#include <cstdio>

#include "launcher/help.h"
#include "launcher/job.h"
#include "launcher/machine.h"
#include "launcher/options.h"
#include "lockstep/base/main.h"

int main(int argc, char** argv) {
  using namespace lockstep::launcher;
  return lockstep::run_main("lockrun", [&] {
    const Machine machine = inspect_machine();
    const Options options = parse_options(argc, argv, machine);
    if (options.help) {
      std::fputs(help_text().c_str(), stdout);
      return 0;
    }
    if (options.version) {
      std::puts("lockrun " LOCKSTEP_VERSION);
      return 0;
    }
    if (!options.print.empty()) {
      const std::string text =
          options.print == "man" ? man_page(LOCKSTEP_VERSION) : completion_script(options.print);
      std::fputs(text.c_str(), stdout);
      return 0;
    }
    return run_job(options, machine);
  });
}
