// `lockstep <subcommand>`: the tools around training.
#include "tools/subcommands.h"

int main(int argc, char** argv) {
  using namespace lockstep::tools;
  using lockstep::run_subcommands;
  return run_subcommands(
      "lockstep", "Measures, inspects and prepares: the tools around training",
      {add_bench, add_checkpoint, add_data, add_env, add_report, add_timeline, add_tokenize, add_topo}, argc,
      argv);
}
