// Every subcommand adds itself to the command line and returns what runs when it is chosen.
#pragma once

#include "lockstep/cli/command_line.h"

namespace lockstep::tools {

void add_bench(CommandLine app, Action& action);
/// `lockstep bench ddp`; called by add_bench.
void add_bench_ddp(CommandLine bench, Action& action);
/// `lockstep bench optimizer`; called by add_bench.
void add_bench_optimizer(CommandLine bench, Action& action);
/// `lockstep bench peer-lost`; called by add_bench.
void add_bench_peer_lost(CommandLine bench, Action& action);
void add_checkpoint(CommandLine app, Action& action);
/// `lockstep checkpoint convert`; called by add_checkpoint.
void add_checkpoint_convert(CommandLine checkpoint, Action& action);
void add_data(CommandLine app, Action& action);
void add_env(CommandLine app, Action& action);
void add_report(CommandLine app, Action& action);
void add_timeline(CommandLine app, Action& action);
void add_tokenize(CommandLine app, Action& action);
void add_topo(CommandLine app, Action& action);

}  // namespace lockstep::tools
