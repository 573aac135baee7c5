// An exception at any place of a step, on one rank: that step fails on all ranks, and the next one is right.
#include <ATen/ops/arange.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// Hands on its input; backward throws if `fails`.
struct Trap : torch::autograd::Function<Trap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("trapped in backward");
    return {gradients[0], at::Tensor()};
  }
};

/// Where a rank leaves the step.
enum class Place { nowhere, forward, loss, before_the_output, in_the_middle, after_the_last_gradient };
constexpr std::array kPlaces{Place::forward, Place::loss, Place::before_the_output, Place::in_the_middle,
                             Place::after_the_last_gradient};

std::string name_of(Place place) {
  switch (place) {
    case Place::nowhere:
      return "nowhere";
    case Place::forward:
      return "in the forward";
    case Place::loss:
      return "in the loss";
    case Place::before_the_output:
      return "in backward, before the output";
    case Place::in_the_middle:
      return "in the middle of backward";
    case Place::after_the_last_gradient:
      return "in backward, after the last gradient";
  }
  return "?";
}

/// Layers with a trap in their middle, and words with sparse gradients if there are to be some.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int layers_, bool has_words_ = false) : has_words(has_words_) {
    for (int i = 0; i < layers_; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(4, 4)));
    }
    if (has_words) {
      words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
    }
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, Place place) {
    if (place == Place::forward) throw std::runtime_error("thrown in forward");
    at::Tensor h = has_words ? x + words->forward(at::arange(x.size(0)) % 6) : x;
    for (size_t i = 0; i < layers.size(); ++i) {
      h = layers[i]->forward(h).tanh();
      if (i == layers.size() / 2) h = Trap::apply(h, place == Place::in_the_middle);
    }
    return h;
  }
  bool has_words;
  std::vector<torch::nn::Linear> layers;
  torch::nn::Embedding words{nullptr};
};
TORCH_MODULE(Stack);

/// With running statistics.
struct BufferedStackImpl : StackImpl {
  BufferedStackImpl() : StackImpl(2) { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(StackImpl::forward(x, Place::nowhere)); }
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(BufferedStack);

at::Tensor input_of(int step, int rank) { return wave({5, 4}, 100 * step + 10 * rank + 3); }

/// A node that is older than all of the module's, so that it runs last.
at::Tensor older_node(Place place) {
  return Trap::apply(at::ones({1}).requires_grad_(), place == Place::after_the_last_gradient).sum();
}

template <class Call>
at::Tensor loss_of(Call& call, int step, int rank, Place place) {
  const at::Tensor older = older_node(place);
  const at::Tensor output = Trap::apply(call(input_of(step, rank), place), place == Place::before_the_output);
  if (place == Place::loss) throw std::runtime_error("thrown in the loss");
  return output.square().sum() + older;
}

void check_zero_gradients(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (!gradient.defined()) continue;
    const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
    if (dense.count_nonzero().item<int64_t>() != 0) {
      throw std::runtime_error("the gradient of " + parameter.key() + " is not zero after a failed step");
    }
  }
}

void check_other_collectives() {
  const at::Tensor one = at::ones({1});
  world().all_reduce(one);
  CHECK_TRUE(one.item<int>() == world().size());
}

/// `run`: a step that fails on the rank `failing`. What the ranks must see of it.
void check_fails(int failing, const std::string& mine, const std::function<void()>& run) {
  if (world().rank() == failing) {
    check_throws<std::exception>(run, mine);
  } else {
    check_throws<Error>(run, "of rank " + std::to_string(failing) + " ended in an exception");
  }
}

struct Kind {
  std::string name;
  DistributedDataParallelOptions options{};
  int layers = 3;
  bool has_words = false, has_hook = false, accumulates = false;
};

std::vector<Kind> kinds() {
  return {
      {.name = "one bucket"},
      {.name = "a bucket for each parameter", .options = {.bucket_cap_mb = kTiny}},
      {.name = "tensors beside the buckets",
       .options = {.bucket_cap_mb = kTiny, .gradient_as_bucket_view = false}},
      {.name = "find_unused_parameters", .options = {.bucket_cap_mb = kTiny, .find_unused_parameters = true}},
      {.name = "static_graph", .options = {.bucket_cap_mb = kTiny, .static_graph = true}},
      {.name = "more than 32 buckets", .options = {.bucket_cap_mb = kTiny}, .layers = 20},
      {.name = "sparse gradients", .options = {.bucket_cap_mb = kTiny}, .has_words = true},
      {.name = "a hook", .options = {.bucket_cap_mb = kTiny}, .has_hook = true},
      {.name = "accumulation", .options = {.bucket_cap_mb = kTiny}, .accumulates = true}};
}

/// Steps 1 and 2 fail; the others are right.
void fail_at(const Kind& kind, Place place, int failing, bool recovers) {
  const int own = world().rank();
  Stack model(kind.layers, kind.has_words), alone(kind.layers, kind.has_words);
  DistributedDataParallel ddp(model, kind.options);
  if (kind.has_hook) ddp.register_comm_hook(std::nullopt, allreduce_hook);
  for (int step = 0; step < 5; ++step) {
    model->zero_grad(step % 2 == 0);
    const bool fails = step == 1 || step == 2;
    const auto micro = [&](auto&& call, int rank) { return loss_of(call, step + 50, rank, Place::nowhere); };
    if (kind.accumulates) {
      const auto guard = ddp.no_sync();
      micro(ddp, own).backward();
    }
    const auto run = [&] {
      loss_of(ddp, step, own, fails && own == failing ? place : Place::nowhere).backward();
    };
    if (fails) {
      check_fails(failing,
                  place == Place::forward || place == Place::loss ? "thrown in" : "trapped in backward", run);
      // Where nothing keeps it from that, the peers' backward ends while this rank is somewhere else.
      const bool waits = kind.has_hook || kind.has_words || 2 * kind.layers > 32;
      if (recovers || waits) ddp.recover();
      if (own != failing || recovers || waits) check_zero_gradients(*model);
      check_other_collectives();
      continue;
    }
    run();
    check_gradients(*model, average_gradients(*alone, [&](int rank) {
      const at::Tensor loss = loss_of(alone, step, rank, Place::nowhere);
      return kind.accumulates ? loss + micro(alone, rank) : loss;
    }));
  }
}

/// A test for each kind, so that a failure names it.
void fail_everywhere(size_t index) {
  const Kind kind = kinds()[index];
  for (const Place place : kPlaces) {
    for (const int failing : {0, world().size() - 1}) {
      for (const bool recovers : {false, true}) {
        if (world().backend_name() == "gloo" && recovers == (failing == 0)) continue;  // slower
        try {
          fail_at(kind, place, failing, recovers);
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}, rank {} {}{}: {}", kind.name, failing, name_of(place),
                                               recovers ? ", recover()" : "", error.what()));
        }
      }
    }
  }
}

TEST(Exceptions, OneBucket) { fail_everywhere(0); }
TEST(Exceptions, ManyBuckets) { fail_everywhere(1); }
TEST(Exceptions, BesideTheBuckets) { fail_everywhere(2); }
TEST(Exceptions, FindUnusedParameters) { fail_everywhere(3); }
TEST(Exceptions, StaticGraph) { fail_everywhere(4); }
TEST(Exceptions, MoreThan32Buckets) { fail_everywhere(5); }
TEST(Exceptions, SparseGradients) { fail_everywhere(6); }
TEST(Exceptions, Hooks) { fail_everywhere(7); }
TEST(Exceptions, Accumulation) { fail_everywhere(8); }

/// Two modules in one backward, the first of which feeds the second.
enum class Between {
  nowhere,
  second_forward,
  loss,
  before_both,
  in_the_second,
  between,
  in_the_first,
  after_both
};

template <class First, class Second>
at::Tensor loss_of_two(First& first, Second& second, int step, int rank, Between place) {
  const at::Tensor older =
      older_node(place == Between::after_both ? Place::after_the_last_gradient : Place::nowhere);
  const auto if_at = [&](Between where, Place then) { return place == where ? then : Place::nowhere; };
  at::Tensor h = first(input_of(step, rank), if_at(Between::in_the_first, Place::in_the_middle));
  h = Trap::apply(h, place == Between::between);
  h = second(h, place == Between::second_forward ? Place::forward
                                                 : if_at(Between::in_the_second, Place::in_the_middle));
  h = Trap::apply(h, place == Between::before_both);
  if (place == Between::loss) throw std::runtime_error("thrown in the loss");
  return h.square().sum() + older;
}

/// `swapped`: the second module was wrapped first.
void fail_between(Between place, int failing, bool recovers, bool swapped, const Kind& kind) {
  const int own = world().rank();
  Stack one(kind.layers, kind.has_words), two(3), one_alone(kind.layers, kind.has_words), two_alone(3);
  std::optional<DistributedDataParallel<Stack>> first, second;
  if (swapped) second.emplace(two, kind.options);
  first.emplace(one, kind.options);
  if (!swapped) second.emplace(two, kind.options);
  if (kind.has_hook) first->register_comm_hook(std::nullopt, allreduce_hook);
  for (int step = 0; step < 4; ++step) {
    one->zero_grad();
    two->zero_grad();
    const bool fails = step == 1 || step == 2;
    const auto run = [&] {
      loss_of_two(*first, *second, step, own, fails && own == failing ? place : Between::nowhere).backward();
    };
    if (fails) {
      check_fails(failing, "", run);
      const bool has_ended = recovers || kind.has_hook || kind.has_words;
      if (has_ended) second->recover();
      if (own != failing || has_ended) {
        check_zero_gradients(*one);
        check_zero_gradients(*two);
      }
      check_other_collectives();
      continue;
    }
    run();
    const auto alone = [&](int rank) {
      return loss_of_two(one_alone, two_alone, step, rank, Between::nowhere);
    };
    check_gradients(*one, average_gradients(*one_alone, alone));
    one_alone->zero_grad();
    check_gradients(*two, average_gradients(*two_alone, alone));
    two_alone->zero_grad();
  }
}

void fail_between_all(const Kind& kind) {
  using enum Between;
  for (const Between place :
       {second_forward, loss, before_both, in_the_second, between, in_the_first, after_both}) {
    for (const int failing : {0, world().size() - 1}) {
      for (const bool swapped : {false, true}) {
        try {
          fail_between(place, failing, /*recovers=*/swapped, swapped, kind);
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}, rank {}, place {}, constructed {}: {}", kind.name,
                                               failing, static_cast<int>(place),
                                               swapped ? "second first" : "in order", error.what()));
        }
      }
    }
  }
}

TEST(Exceptions, TwoModules) { fail_between_all(kinds()[1]); }
TEST(Exceptions, TwoModulesAndAHook) { fail_between_all(kinds()[7]); }
TEST(Exceptions, TwoModulesAndSparseGradients) { fail_between_all(kinds()[6]); }
TEST(Exceptions, TwoModulesThatMayBeUnused) { fail_between_all(kinds()[3]); }

/// An output of the first module that outlives the exception in the second one's backward.
TEST(Exceptions, AnOutputThatIsKept) {
  const int own = world().rank();
  for (const int failing : {0, world().size() - 1}) {
    Stack one(3), two(3), one_alone(3), two_alone(3);
    DistributedDataParallel first(one), second(two);
    at::Tensor made, score;
    for (int step = 0; step < 4; ++step) {
      one->zero_grad();
      two->zero_grad();
      const bool fails = step == 1 && own == failing;
      made = first(input_of(step, own), Place::nowhere);
      score = second(Trap::apply(made, fails), Place::nowhere);
      if (step == 1) {
        check_fails(failing, "trapped", [&] { score.square().sum().backward(); });
        check_other_collectives();
        continue;
      }
      score.square().sum().backward();
      const auto alone = [&](int rank) {
        return loss_of_two(one_alone, two_alone, step, rank, Between::nowhere);
      };
      check_gradients(*one, average_gradients(*one_alone, alone));
      one_alone->zero_grad();
      check_gradients(*two, average_gradients(*two_alone, alone));
      two_alone->zero_grad();
    }
  }
}

/// Several outputs, a vector of them, and a wrapper that is gone.
TEST(Exceptions, EveryOutputMustBeGone) {
  const int own = world().rank();
  TwoHeads model, alone;
  DistributedDataParallel ddp(model);
  const auto loss = [](auto&& call, int step, int rank) {
    const auto [left, right] = call(input_of(step, rank));
    return (left * right).sum();
  };
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, 7, rank); });
  // One head is dropped at once, and the other one lives on: no exception.
  model->zero_grad();
  {
    at::Tensor right;
    {
      auto outputs = ddp(input_of(7, own));
      right = std::get<0>(outputs) * std::get<1>(outputs);
    }
    try {
      throw std::runtime_error("of something else");
    } catch (const std::runtime_error&) {
    }
    right.sum().backward();
  }
  check_gradients(*model, expected);
  check_fails(0, "of the loss", [&] {
    const auto [left, right] = ddp(input_of(7, own));
    if (own == 0) throw std::runtime_error("of the loss");
    (left * right).sum().backward();
  });
  model->zero_grad();
  loss(ddp, 7, own).backward();
  check_gradients(*model, expected);
  check_fails(0, "of the loss", [&] {
    const auto [left, right] = DistributedDataParallel(model)(input_of(7, own));
    if (own == 0) throw std::runtime_error("of the loss");
    (left * right).sum().backward();
  });
  model->zero_grad();
  loss(ddp, 7, own).backward();
  check_gradients(*model, expected);
}

/// Outputs that nothing takes away but the end of their scope are no step: one rank may validate alone.
TEST(Exceptions, OutputsWithoutAnExceptionAreNoStep) {
  const int own = world().rank();
  Stack model(3), alone(3);
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    loss_of(ddp, step, own, Place::nowhere).backward();
    check_gradients(*model, average_gradients(*alone, [&](int rank) {
      return loss_of(alone, step, rank, Place::nowhere);
    }));
    if (own != 0) continue;
    ddp(input_of(step, own), Place::nowhere);  // with gradients enabled
    const torch::NoGradGuard no_grad;
    check_throws<std::runtime_error>(
        [&] {
          const at::Tensor output = ddp(input_of(step, own), Place::nowhere);
          throw std::runtime_error("in a metric");
        },
        "in a metric");
    check_throws<std::runtime_error>([&] { ddp(input_of(step, own), Place::forward); }, "thrown in forward");
  }
}

/// An exception that all ranks throw costs nothing of what was accumulated before.
TEST(Exceptions, InTheLossOfAllRanks) {
  const int own = world().rank();
  for (const bool as_view : {true, false}) {
    Stack model(3), alone(3);
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = as_view});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(step == 1);
      {
        const auto guard = ddp.no_sync();
        loss_of(ddp, step, own, Place::nowhere).backward();
      }
      check_throws<std::runtime_error>([&] { loss_of(ddp, step + 10, own, Place::loss); },
                                       "thrown in the loss");
      loss_of(ddp, step + 20, own, Place::nowhere).backward();
      check_gradients(*model, average_gradients(*alone, [&](int rank) {
        return loss_of(alone, step, rank, Place::nowhere) + loss_of(alone, step + 20, rank, Place::nowhere);
      }));
    }
  }
}

/// In a hook: at its start, in a stage, and in the last thing that it does, on one rank.
TEST(Exceptions, InAHookOfOneRank) {
  const int own = world().rank();
  for (const bool in_a_stage : {false, true}) {
    for (const bool is_static : {false, true}) {
      for (const int failing : {0, world().size() - 1}) {
        Stack model(3), alone(3);
        DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .static_graph = is_static});
        const auto fails = std::make_shared<bool>(false);
        ddp.register_comm_hook(
            fails, [in_a_stage](const std::shared_ptr<bool>& now, GradBucket& bucket) -> Future {
              const bool throws = *now && bucket.index() == 1;
              if (throws && !in_a_stage) {
                *now = false;
                throw std::runtime_error("thrown in the hook");
              }
              return allreduce_hook(std::nullopt, bucket).then([throws](const at::Tensor& value) -> Future {
                if (throws) throw std::runtime_error("thrown in the hook");
                return value;
              });
            });
        for (int step = 0; step < 4; ++step) {
          model->zero_grad();
          *fails = step == 1 && own == failing;
          const auto run = [&] { loss_of(ddp, step, own, Place::nowhere).backward(); };
          if (step == 1) {
            check_fails(failing, "thrown in the hook", run);
            ddp.recover();
            check_zero_gradients(*model);
            check_other_collectives();
            continue;
          }
          run();
          check_gradients(*model, average_gradients(*alone, [&](int rank) {
            return loss_of(alone, step, rank, Place::nowhere);
          }));
        }
      }
    }
  }
}

/// Where the ranks announce what they are about to do.
TEST(Exceptions, UnderJoin) {
  const int own = world().rank();
  for (const Place place : kPlaces) {
    Stack model(3), alone(3);
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
    // The last rank has one batch less.
    join({ddp}, [&] {
      for (int step = 0; step < (own + 1 < world().size() ? 4 : 3); ++step) {
        model->zero_grad();
        const auto run = [&] {
          loss_of(ddp, step, own, step == 1 && own == 0 ? place : Place::nowhere).backward();
        };
        if (step == 1) {
          check_fails(0, "", run);
          ddp.recover();
          check_zero_gradients(*model);
          continue;
        }
        run();
        if (step == 3) continue;
        check_gradients(*model, average_gradients(*alone, [&](int rank) {
          return loss_of(alone, step, rank, Place::nowhere);
        }));
      }
    });
  }
}

/// A logical rank of one process fails, the first or the last one of it: before its forward or after its backward, which
/// for the last one comes too late to be seen.
TEST(Exceptions, InALogicalRank) {
  ONLY_IF(world().size() == 2 || world().size() == 4);
  const int own = world().rank();
  constexpr int kLogical = 8;
  for (const int failing : {0, world().size() - 1}) {
    for (const bool in_last : {false, true}) {
      for (const bool is_late : {false, true}) {
        BufferedStack model, alone;
        DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
        LogicalRanks ranks(ddp, {.size = kLogical});
        const int who = in_last ? ranks.own().back() : ranks.own().front();
        const auto run = [&](int step, bool fails) {
          ranks.run_step(static_cast<uint64_t>(step), 1, [&](const LogicalPass& pass) {
            const bool is_it = fails && own == failing && pass.rank == who;
            if (is_it && !is_late) throw std::runtime_error("on purpose");
            ddp(input_of(step, pass.rank)).square().sum().backward();
            if (is_it) throw std::runtime_error("on purpose");
          });
        };
        for (int step = 0; step < 4; ++step) {
          model->zero_grad();
          const bool is_seen = !in_last || !is_late;
          if (step == 1 && is_seen) {
            check_fails(failing, "on purpose", [&] { run(step, true); });
          } else if (step == 1 && own == failing) {
            check_throws<std::runtime_error>([&] { run(step, true); }, "on purpose");
          } else {
            run(step, false);
            std::vector<at::Tensor> sums;
            for (const at::Tensor& parameter : alone->parameters()) parameter.mutable_grad().reset();
            for (int rank = 0; rank < kLogical; ++rank) {
              (alone->forward(input_of(step, rank)).square().sum() / kLogical).backward();
            }
            for (const at::Tensor& parameter : alone->parameters()) sums.push_back(parameter.grad().clone());
            check_gradients(*model, sums, 1e-4);
          }
          check_other_collectives();
        }
      }
    }
  }
}

/// The first pass agrees on an order of the buckets; whoever fails in it has none.
TEST(Exceptions, InTheFirstPass) {
  const int own = world().rank();
  for (const Place place : kPlaces) {
    for (const int failing : {0, world().size() - 1}) {
      Stack model(3), alone(3);
      DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
      check_fails(failing, "",
                  [&] { loss_of(ddp, 0, own, own == failing ? place : Place::nowhere).backward(); });
      for (int step = 1; step < 4; ++step) {
        model->zero_grad();
        loss_of(ddp, step, own, Place::nowhere).backward();
        check_gradients(*model, average_gradients(*alone, [&](int rank) {
          return loss_of(alone, step, rank, Place::nowhere);
        }));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
