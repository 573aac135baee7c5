// `lockstep <subcommand>`: the tools around training.
#include "tools/subcommands.h"

int main(int argc, char** argv) {
  using namespace lockstep::tools;
  return run_subcommands("lockstep", "Lockstep's tools. `lockstep <subcommand> --help` describes each.",
                         {add_bench, add_data, add_env, add_timeline, add_tokenize, add_topo}, argc, argv);
}
