// Every subcommand adds itself to the command line and returns what runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <vector>

namespace lockstep::tools {

/// A chosen subcommand's work; returns the exit code.
using Action = std::function<int()>;

/// Adds a subcommand to `app` and sets `action` when it is chosen.
using AddSubcommand = void (*)(CLI::App& app, Action& action);

void add_bench(CLI::App& app, Action& action);
/// `lockstep bench ddp`; called by add_bench.
void add_bench_ddp(CLI::App& bench, Action& action);
/// `lockstep bench optimizer`; called by add_bench.
void add_bench_optimizer(CLI::App& bench, Action& action);
/// `lockstep bench peer-lost`; called by add_bench.
void add_bench_peer_lost(CLI::App& bench, Action& action);
void add_data(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_timeline(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_topo(CLI::App& app, Action& action);

}  // namespace lockstep::tools
