// Message passing step by step: every rank prints what it holds before and after each operation.
//
//   messages [RANKS]                                    starts its own ranks (default 4)
//   lockrun --standalone --nproc-per-node 4 messages    or runs as the ranks of any launcher
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/spawn.h"

namespace {

using lockstep::ProcessGroup;

std::string format_values(const at::Tensor& tensor) {
  std::string text;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    char number[32];
    std::snprintf(number, sizeof number, "%g", tensor.reshape({-1})[i].item<double>());
    text += (text.empty() ? "" : " ") + std::string(number);
  }
  return "[" + text + "]";
}

/// Prints every rank's line, in rank order, from rank 0.
void show(const ProcessGroup& group, const char* when, const at::Tensor& tensor) {
  const auto lines = group.gather_bytes(format_values(tensor));
  for (size_t r = 0; r < lines.size(); ++r) std::printf("  %-6s rank %zu  %s\n", when, r, lines[r].c_str());
  std::fflush(stdout);
}

void title(const ProcessGroup& group, const char* text) {
  if (group.rank() == 0) std::printf("%s\n", text);
}

/// Two numbers of this rank's own: rank 2 holds [21 22].
at::Tensor own(const ProcessGroup& group) { return at::arange(1, 3, at::kFloat) + 10 * group.rank(); }

void blocking(const ProcessGroup& group) {
  title(group, "send and recv, blocking: rank 0 gives its numbers to the next, and so on");
  const at::Tensor tensor = group.rank() == 0 ? own(group) : at::zeros({2});
  show(group, "before", tensor);
  if (group.rank() > 0) group.recv(tensor, group.rank() - 1);
  if (group.rank() + 1 < group.size()) group.send(tensor, group.rank() + 1);
  show(group, "after", tensor);
}

void non_blocking(const ProcessGroup& group) {
  title(group, "isend and irecv: everybody gives to the next and takes from the previous at once");
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor sent = own(group), received = at::zeros({2});
  show(group, "before", sent);
  const auto receive = group.irecv(received, previous);
  const auto send = group.isend(sent, next);
  receive->wait();
  send->wait();
  show(group, "after", received);
}

void collectives(const ProcessGroup& group) {
  const int last = group.size() - 1;
  at::Tensor tensor = own(group);
  title(group, "broadcast from the last rank");
  show(group, "before", tensor);
  group.broadcast(tensor, {.src = last});
  show(group, "after", tensor);

  tensor = own(group);
  title(group, "reduce: the sum at rank 0");
  show(group, "before", tensor);
  group.reduce(tensor, {.dst = 0});
  show(group, "after", group.rank() == 0 ? tensor : own(group));

  tensor = own(group);
  title(group, "all_reduce: the sum everywhere");
  show(group, "before", tensor);
  group.all_reduce(tensor);
  show(group, "after", tensor);

  title(group, "scatter: rank 0 deals out one part each");
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group.size() && group.rank() == 0; ++r) parts.push_back(at::full({2}, 100.0 + r));
  tensor = at::zeros({2});
  show(group, "before", tensor);
  group.scatter(tensor, parts, {.src = 0});
  show(group, "after", tensor);

  title(group, "gather: rank 0 collects everybody's");
  show(group, "before", own(group));
  const auto gathered = group.gather(own(group), {.dst = 0});
  show(group, "after", gathered.empty() ? own(group) : at::cat(gathered));

  title(group, "all_gather: everybody collects everybody's");
  show(group, "before", own(group));
  show(group, "after", at::cat(group.all_gather(own(group))));
}

void run(int /*rank*/, const nlohmann::json& /*arguments*/) {
  const auto world = lockstep::init();
  blocking(world);
  if (world.size() > 1) non_blocking(world);
  collectives(world);
}
const lockstep::Spawnable kRun("messages", run);

struct Options {
  int ranks = 4;
};

constexpr auto kFlags = std::to_array<lockstep::Flag<Options>>({
    {.name = "RANKS",
     .member = &Options::ranks,
     .preset = lockstep::kHeldValue,
     .check = lockstep::FlagCheck::between(1, 256),
     .words = "Ranks to start; under a launcher it has no effect",
     .is_place = true},
});

int start(int argc, char** argv) {
  Options options;
  const auto add_flags = [&](lockstep::CommandLine program) {
    program.add_example("Start four ranks itself", "messages 4");
    program.add_example("Be the ranks that a launcher starts", "lockrun --nproc-per-node 4 messages");
    program.add_table<Options>(kFlags, options);
  };
  if (!lockstep::parse_command_line(
          "messages", "Shows what every rank holds before and after each message and collective", add_flags,
          argc, argv)) {
    return 0;
  }
  if (lockstep::is_launched()) {
    run(0, {});
  } else {
    lockstep::spawn(kRun, options.ranks);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::skip_library_destructors();
  return lockstep::run_main("messages", [&] { return start(argc, argv); });
}
