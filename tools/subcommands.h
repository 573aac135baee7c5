// Every subcommand adds itself to the command line and returns what runs when it is chosen.
#pragma once

#include "tools/command_line.h"

namespace lockstep::tools {

void add_bench(Subcommand app, Action& action);
/// `lockstep bench ddp`; called by add_bench.
void add_bench_ddp(Subcommand bench, Action& action);
/// `lockstep bench optimizer`; called by add_bench.
void add_bench_optimizer(Subcommand bench, Action& action);
/// `lockstep bench peer-lost`; called by add_bench.
void add_bench_peer_lost(Subcommand bench, Action& action);
void add_data(Subcommand app, Action& action);
void add_env(Subcommand app, Action& action);
void add_timeline(Subcommand app, Action& action);
void add_tokenize(Subcommand app, Action& action);
void add_topo(Subcommand app, Action& action);

}  // namespace lockstep::tools
