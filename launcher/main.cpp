// lockrun: starts the ranks of a job, watches them and ends them together.
#include <cstdio>
#include <string_view>

#include "launcher/cli/help.h"
#include "launcher/cli/options.h"
#include "launcher/machines/assignment.h"
#include "launcher/machines/machine.h"
#include "launcher/output/sink.h"
#include "launcher/process/first_process.h"
#include "launcher/process/signals.h"
#include "launcher/run/assigned_job.h"
#include "launcher/run/job.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/help.h"

int main(int argc, char** argv) {
  using namespace lockstep::launcher;
  open_standard_streams();
  take_signals_back();
  leave_process_1_to_a_parent();
  return lockstep::run_main("lockrun", [&] {
    const Machine machine = inspect_machine();
    if (argc == 2 && std::string_view(argv[1]) == kAssignedFlag) return run_assigned_job(machine);
    const Options options = parse_options(argc, argv, machine);
    if (options.help) {
      std::fputs(help_text(lockstep::help_columns()).c_str(), stdout);
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
