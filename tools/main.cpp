// `lockstep <subcommand>`: the tools around training.
#include <array>
#include <cstdio>
#include <string_view>

#include "git_revision.h"
#include "tools/subcommands.h"

namespace {

struct Options {
  bool version = false;
};

/// For --help only: main() answers the flag, because a command line without a subcommand is an error.
constexpr auto kFlags = std::to_array<lockstep::Flag<Options>>(
    {{.name = "version", .member = &Options::version, .words = "Print the version and the commit"}});

void add_version(lockstep::CommandLine program, lockstep::Action& /*action*/) {
  static Options options;
  program.add_table<Options>(kFlags, options);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep::tools;
  using lockstep::run_subcommands;
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("lockstep " LOCKSTEP_VERSION " (" LOCKSTEP_GIT_REVISION ")");
    return 0;
  }
  return run_subcommands("lockstep", "Measures, inspects and prepares: the tools around training",
                         {add_bench, add_checkpoint, add_data, add_env, add_report, add_timeline,
                          add_tokenize, add_topo, add_version},
                         argc, argv);
}
