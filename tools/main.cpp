// `lockstep <subcommand>`: the tools around training.
#include <cstdio>

#include "lockstep/base/main.h"
#include "tools/subcommands.h"

int main(int argc, char** argv) {
  CLI::App app("Lockstep's tools. `lockstep <subcommand> --help` describes each.", "lockstep");
  app.require_subcommand(1);
  lockstep::tools::Action action;
  lockstep::tools::add_bench(app, action);
  lockstep::tools::add_data(app, action);
  lockstep::tools::add_env(app, action);
  lockstep::tools::add_timeline(app, action);
  lockstep::tools::add_tokenize(app, action);
  lockstep::tools::add_topo(app, action);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main("lockstep", action);
}
