// A short training whose ranks die where they are told to: `healed_training --steps N --optimizer NAME`, a rank of lockrun.
//
// HEAL_KILLS names deaths, with spaces between: RANK:STEP:PLACE:HOW. PLACE: data, forward, backward, before (the optimizer),
// after (it), between (two steps), setup (before Recovery), again (there, of a process that takes the place of another one),
// us=N (N microseconds after the step's begin, from another thread). HOW: a signal's number, exit, or throw. Each happens
// once, which a file in HEAL_DIR remembers; one with a * behind it happens every time.
// Every rank prints "rank R of N: steps S hash H" in the end.
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/main.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/state/counters.h"
#include "lockstep/step/replica_hash.h"

namespace {

struct Death {
  int rank = 0;
  int64_t step = 0;
  std::string place, how;
  bool always = false;
  size_t number = 0;
};

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<Death> read_deaths() {
  std::vector<Death> deaths;
  std::istringstream words(setting("HEAL_KILLS"));
  for (std::string word; words >> word;) {
    Death death{.number = deaths.size()};
    if (word.back() == '*') {
      death.always = true;
      word.pop_back();
    }
    std::istringstream parts(word);
    std::string rank, step;
    std::getline(parts, rank, ':');
    std::getline(parts, step, ':');
    std::getline(parts, death.place, ':');
    std::getline(parts, death.how, ':');
    death.rank = std::stoi(rank);
    death.step = std::stoll(step);
    deaths.push_back(death);
  }
  return deaths;
}

bool is_first_time(const Death& death) {
  if (death.always) return true;
  const std::string file = fmt::format("{}/death{}", setting("HEAL_DIR"), death.number);
  const int fd = ::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

void die(const std::string& how, bool is_main_thread = true) {
  if (how == "exit" && is_main_thread) std::exit(1);
  if (how == "exit") std::_Exit(1);
  if (how == "throw") throw std::runtime_error("planned");
  std::signal(std::stoi(how), SIG_DFL);
  ::raise(std::stoi(how));
}

class Deaths {
 public:
  explicit Deaths(int rank) : rank_(rank), all_(read_deaths()) {}
  void at(const char* place, int64_t step) const {
    for (const Death& death : all_) {
      if (death.rank == rank_ && death.step == step && death.place == place && is_first_time(death))
        die(death.how);
    }
  }
  /// From another thread, after the time that a death names.
  void in_step(int64_t step) const {
    for (const Death& death : all_) {
      if (death.rank != rank_ || death.step != step || !death.place.starts_with("us=") ||
          !is_first_time(death))
        continue;
      const auto after = std::chrono::microseconds(std::stoll(death.place.substr(3)));
      std::thread([after, how = death.how] {
        std::this_thread::sleep_for(after);
        die(how, /*is_main_thread=*/false);
      }).detach();
    }
  }

 private:
  int rank_;
  std::vector<Death> all_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width)
      : first(register_module("first", torch::nn::Linear(8, width))),
        second(register_module("second", torch::nn::Linear(width, width))),
        third(register_module("third", torch::nn::Linear(width, 4))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = dropout(at::relu(first(x)));
    if (in_forward) in_forward();
    h = at::relu(second(h));
    if (in_backward && h.requires_grad()) {
      h.register_hook([this](const at::Tensor& gradient) {
        in_backward();
        return gradient;
      });
    }
    return third(dropout(h));
  }
  torch::nn::Linear first, second, third;
  torch::nn::Dropout dropout;
  std::function<void()> in_forward, in_backward;
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Net& net) {
  const auto parameters = lockstep::parameters(net);
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01));
  if (name == "momentum")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  if (name == "our_adamw")
    return std::make_unique<lockstep::FusedAdamW>(parameters, torch::optim::AdamWOptions(0.01));
  if (name == "our_sgd")
    return std::make_unique<lockstep::FusedSGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  throw std::runtime_error("no such optimizer: " + name);
}

/// Rows that follow from their numbers alone.
at::Tensor rows(int64_t first) {
  return at::sin(at::arange(first * 8, (first + 4) * 8, at::TensorOptions(at::kFloat)).view({4, 8}) * 0.37);
}

int run(int argc, char** argv) {
  int64_t steps = 20;
  int64_t width = 32;
  std::string optimizer_name = "adam";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--steps") == 0) steps = std::stoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--width") == 0) width = std::stoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--optimizer") == 0) optimizer_name = argv[i + 1];
  }
  const Deaths deaths(std::atoi(setting("RANK").c_str()));
  const auto world = lockstep::init();
  at::manual_seed(static_cast<uint64_t>(7 + world.rank()));  // rank 0's weights count
  Net net(width);
  lockstep::DistributedDataParallel ddp(net);
  auto optimizer = make_optimizer(optimizer_name, net);
  lockstep::LRScheduler scheduler(*optimizer,
                                  {.type = lockstep::SchedulerType::linear, .num_training_steps = steps});
  lockstep::Counters counters;
  deaths.at("setup", 0);
  const auto healable = lockstep::backends::HealableJob::current();
  if (healable && healable->is_replaying()) deaths.at("again", 0);
  lockstep::Recovery recovery(
      world, {{"model", *net}, {"optimizer", *optimizer}, {"scheduler", scheduler}, {"counters", counters}},
      {.seed = 3});
  int64_t step = 0;
  net->in_forward = [&] { deaths.at("forward", step); };
  net->in_backward = [&] { deaths.at("backward", step); };
  while (recovery.steps() < steps) {
    step = recovery.steps();
    deaths.at("between", step);
    lockstep::step(recovery, [&] {
      step = recovery.steps();
      deaths.in_step(step);
      deaths.at("data", step);
      const at::Tensor x = rows(counters["rows"] + world.rank() * 4);
      counters["rows"] += 4 * world.size();
      optimizer->zero_grad();
      const at::Tensor loss = at::mse_loss(ddp(x), at::cos(x.narrow(1, 0, 4)));
      loss.backward();
      deaths.at("before", step);
      optimizer->step();
      deaths.at("after", step);
      scheduler.step();
    });
  }
  uint64_t hash = static_cast<uint64_t>(counters["rows"]);
  for (const at::Tensor& parameter : net->parameters()) {
    hash = hash * 31 + lockstep::detail::hash_of_memory(parameter.const_data_ptr(), parameter.nbytes());
  }
  std::printf("rank %d of %d: steps %lld hash %016llx\n", world.rank(), world.size(),
              static_cast<long long>(recovery.steps()), static_cast<unsigned long long>(hash));
  std::fflush(stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("healed_training", [&] { return run(argc, argv); });
}
