// For tracking_peers_test.py: tracks a run of made-up numbers. Arguments are NAME=VALUE.
//   dir, id, kinds (as --report-to), from and to (steps), resume (steps kept), records (kept of the last of them), rank and ranks,
//   end: finish, fail (exit code 1), kill (SIGKILL), wait (for a line on standard input, then finish), patience (seconds that
//   wandb's client has at the end)
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <map>

#include "lockstep/base/main.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/trackers.h"
#include "lockstep/tracking/wandb_tracker.h"

namespace {

using namespace lockstep;

void log_step(Trackers& trackers, int64_t step) {
  trackers.log(step, {{"train/loss", 1.0 / static_cast<double>(step)}, {"train/learning_rate", 5e-5}});
  if (step % 5 == 0) trackers.log(step, {{"eval/accuracy", static_cast<double>(step) / 100}});
  if (step == 2) trackers.log_text(step, "sample", "a \"quoted\"\ntext, naïve");
  if (step == 3) {
    const float values[] = {0, 0.25F, 0.5F, 1, std::numeric_limits<float>::quiet_NaN()};
    trackers.log_histogram(step, "weights/fc", make_histogram(values, 4));
  }
  if (step == 4) trackers.log(step, {{"odd", std::nan("")}, {"endless", HUGE_VAL}});
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> given = {
      {"kinds", "all"}, {"end", "finish"}, {"from", "1"}, {"rank", "0"}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    given[argument.substr(0, argument.find('='))] = argument.substr(argument.find('=') + 1);
  }
  TrackedRun tracked{.id = given["id"], .name = "a run"};
  if (given.contains("ranks")) {
    tracked = run_of_rank(tracked, std::stoi(given["rank"]), std::stoi(given["ranks"]));
  }
  if (given.contains("resume")) tracked.resume_step = std::stoll(given["resume"]);
  if (given.contains("records")) tracked.resume_step_records = std::stoll(given["records"]);
  std::vector<std::shared_ptr<Tracker>> list;
  const auto kinds = parse_report_to(given["kinds"]);
  for (const auto& kind : kinds.value()) {
    if (kind == "wandb" && given.contains("patience")) {
      list.push_back(std::make_shared<WandbTracker>(
          WandbOptions{.directory = given["dir"], .finish_timeout_seconds = std::stod(given["patience"])}));
      continue;
    }
    list.push_back(make_tracker(kind, tracked, {.directory = given["dir"], .project = "a project"}));
  }
  Trackers trackers(list);
  trackers.start(tracked);
  for (const auto& tracker : list) {
    if (auto* wandb = dynamic_cast<WandbTracker*>(tracker.get())) {
      wandb->define_metric("train/loss", {.summary = "min"});
    }
  }
  trackers.config({{"learning_rate", 5e-5}, {"optim", "sgd"}, {"bf16", true}, {"max_steps", int64_t{20}}});
  for (int64_t step = std::stoll(given["from"]); step <= std::stoll(given["to"]); ++step) {
    log_step(trackers, step);
  }
  if (given["end"] == "kill") ::raise(SIGKILL);
  if (given["end"] == "wait") {
    std::cout << "logged" << std::endl;
    std::string line;
    std::getline(std::cin, line);
  }
  trackers.summary({{"best", 0.25}, {"verdict", "good"}});
  trackers.finish(given["end"] == "fail" ? 1 : 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("tracking_runner", [&] { return run(argc, argv); });
}
