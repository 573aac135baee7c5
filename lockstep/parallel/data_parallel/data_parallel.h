// DataParallel: copies of a module on threads of one process, without a launcher.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel/replicate.h"
#include "lockstep/parallel/data_parallel/scatter_gather.h"
#include "lockstep/parallel/module_call.h"

namespace lockstep {

template <class M>
class DataParallel;

namespace detail {
template <class F>
inline constexpr bool kIsDataParallel = false;
template <class M>
inline constexpr bool kIsDataParallel<DataParallel<M>> = true;
template <class F>
concept IsModule = std::convertible_to<F, std::shared_ptr<torch::nn::Module>> || requires(const F& module) {
  module.ptr();
};
template <class F>
concept ModuleFactory = !IsModule<F> && !kIsDataParallel<F> && std::invocable<F&>;
template <class F>
struct
    MadeBy;  // of factories alone: the call operator without arguments of a holder, or of DataParallel, may not compile
template <ModuleFactory F>
struct MadeBy<F> {
  using type = std::invoke_result_t<F&>;
};
}  // namespace detail

/// torch.nn.DataParallel: forward divides the batch among `replicas` of the module, each on a thread
/// of its own, and returns their outputs as one batch; backward through those runs on the replicas' threads, and
/// leaves in the module's gradients the sum over the replicas, in the order in which an all-reduce adds. So the
/// loop is that of one process, and the gradients those of the whole batch.
///
///     lockstep::DataParallel model(net, {.replicas = 4});
///     at::cross_entropy_loss(model(images), labels).backward();
///
/// `M`: a holder, or a std::shared_ptr to a subclass of torch::nn::Module. The module is shared with the caller and
/// is replica 0. The others are kept; their parameters are the module's memory, so nothing is copied in a step but
/// buffers. In every forward they follow the module's values, train() and eval(), requires_grad, and buffers:
/// BatchNorm's statistics are those of replica 0's part of the batch, as with DistributedDataParallel. What else
/// is changed in the module after wrapping (a probability of dropout) does not reach them.
///
/// Dropout of lockstep::ops, so BERT's, has a random stream for each replica (replica_seed()); torch::nn::Dropout
/// draws from the process's one generator, in the order in which threads come. Accumulating into gradients that
/// zero_grad() has not dropped costs a copy of them. One thread at a time.
///
/// In a module that DistributedDataParallel wraps, gradients are the average over all replicas of all ranks.
///
/// With device_ids each replica has a GPU, and gets the module's values in every forward. Inputs, wherever they are,
/// are brought there, outputs to output_device; gradients of the inputs go back to where those were.
template <class M>
class DataParallel {
  // Before the parts of the class that a wrong type does not fit.
  static_assert(detail::wraps_module<M> && !std::is_same_v<M, torch::nn::AnyModule>,
                "DataParallel takes a module holder (TORCH_MODULE) or a std::shared_ptr to a subclass of "
                "torch::nn::Module (std::make_shared<Net>(), not `Net net;`)");

 public:
  /// `module` must have a clone() (derive from torch::nn::Cloneable), unless there is one replica. Throws ValueError,
  /// for device_ids too that name GPUs which this process does not see, or of which the first is not the module's.
  explicit DataParallel(M module, DataParallelOptions options = {})
      : DataParallel(std::move(module), options, [](const M& original) {
          return detail::as_holder<M>(detail::clone_module(*detail::module_pointer(original)));
        }) {}
  /// `factory()` makes a module; its first one keeps its values, the others take them over. torch's default
  /// generator goes on as after one call. Throws ValueError where the modules differ.
  template <detail::ModuleFactory Factory>
  requires std::same_as<std::invoke_result_t<Factory&>, M>
  explicit DataParallel(Factory factory, DataParallelOptions options = {})
      : DataParallel(factory(), options, [&](const M& /*original*/) { return factory(); }) {}

  /// The module's forward with each replica's part of the arguments; see scatter() and gather() for what they may
  /// be and what becomes of them. A batch of fewer samples than replicas goes to as many as it has. With one
  /// replica this is the module's forward itself. Throws ValueError for tensors that do not fit together, and
  /// ReplicaError for what a replica throws, here or in backward; no gradient has changed then. backward() does
  /// not know create_graph; torch::autograd::grad() finds inputs, and no parameters.
  template <class... Args>
  auto operator()(Args&&... args) {
    if constexpr (detail::verify_call<M, std::decay_t<Args>&...>()) {
      return run([](M& module, auto&... argument) { return module->forward(argument...); },
                 std::forward<Args>(args)...);
    } else {
      return at::Tensor();  // so that what is done with the result is no further error
    }
  }
  /// Does what the call operator does.
  template <class... Args>
  auto forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }

  /// For a forward that returns its loss, one number, the mean over its samples: the mean over the whole batch, a
  /// tensor without dimensions; each replica counts by its number of samples. So no output is gathered. With
  /// parts of one size its gradients have the bits of DistributedDataParallel's on as many ranks.
  template <class... Args>
  at::Tensor mean_loss(Args&&... args) {
    if constexpr (detail::verify_call<M, std::decay_t<Args>&...>()) {
      return run_mean([](M& module, auto&... argument) { return module->forward(argument...); },
                      std::forward<Args>(args)...);
    } else {
      return {};
    }
  }

  /// `call(module, part of args...)` in each replica instead of forward; what it returns is gathered.
  template <class Call, class... Args>
  auto run(const Call& call, Args&&... args) {
    using Output = std::remove_cvref_t<std::invoke_result_t<const Call&, M&, std::decay_t<Args>&...>>;
    if (replicas_.size() == 1) return call_here<Output>(call, std::forward<Args>(args)...);
    auto [outputs, shards] = run_parts<Output>(call, std::forward<Args>(args)...);
    std::vector<detail::FoundTensors> found;
    for (Output& output : outputs) found.push_back(detail::find_tensors(output, "the output"));
    const auto joined = set_->gather(std::move(shards), std::move(found), detail::Join::concatenate);
    Output whole = std::move(outputs.front());
    detail::replace_tensors(whole, joined);
    return whole;
  }
  /// Works like run() where `call` returns its part's loss: see mean_loss().
  template <class Call, class... Args>
  at::Tensor run_mean(const Call& call, Args&&... args) {
    if (replicas_.size() == 1) return call_here<at::Tensor>(call, std::forward<Args>(args)...);
    auto [outputs, shards] = run_parts<at::Tensor>(call, std::forward<Args>(args)...);
    std::vector<detail::FoundTensors> found;
    for (at::Tensor& output : outputs) found.push_back(detail::find_tensors(output, "the loss"));
    return set_->gather(std::move(shards), std::move(found), detail::Join::mean).front();
  }

  /// The wrapped module, which is replica 0.
  M& module() { return replicas_.front(); }
  /// The wrapped module's members: names of parameters and checkpoint keys have no prefix.
  auto* operator->() { return &*replicas_.front(); }
  /// All of them; the first is the module.
  const std::vector<M>& replicas() const { return replicas_; }
  /// Where the time went; nothing is measured with one replica.
  const DataParallelTimes& times() const { return set_->times(); }

 private:
  template <class Make>
  DataParallel(M module, const DataParallelOptions& given, const Make& make) {
    replicas_.push_back(std::move(module));
    const DataParallelOptions options = detail::checked(given, *detail::module_pointer(replicas_.front()));
    detail::keep_random_state([&] {
      for (int r = 1; r < options.replicas; ++r) replicas_.push_back(make(replicas_.front()));
    });
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (const M& replica : replicas_) modules.push_back(detail::module_pointer(replica));
    set_ = std::make_shared<detail::ReplicaSet>(std::move(modules), options, detail::choose_places(options));
  }

  template <class Output, class Call, class... Args>
  Output call_here(const Call& call, Args&&... args) {
    std::tuple<std::decay_t<Args>...> copies(std::forward<Args>(args)...);
    if (!set_->is_on_cpu()) {
      const detail::FoundTensors found = detail::find_tensors(copies, "argument ");
      detail::replace_tensors(copies, set_->at_first(found.tensors));
    }
    return std::apply([&](auto&... argument) { return call(replicas_.front(), argument...); }, copies);
  }

  template <class Output, class Call, class... Args>
  std::pair<std::vector<Output>, detail::Shards> run_parts(const Call& call, Args&&... args) {
    using Arguments = std::tuple<std::decay_t<Args>...>;
    Arguments whole(std::forward<Args>(args)...);
    detail::Shards shards = set_->scatter(detail::find_tensors(whole, "argument "));
    std::vector<Arguments> parts(shards.sizes.size(), whole);
    std::vector<std::optional<Output>> outputs(parts.size());
    for (size_t part = 0; part < parts.size(); ++part) {
      detail::replace_tensors(parts[part], shards.parts[part]);
    }
    set_->forward(shards.count(), [&](int replica) {
      const auto r = static_cast<size_t>(replica);
      outputs[r].emplace(
          std::apply([&](auto&... argument) { return call(replicas_[r], argument...); }, parts[r]));
    });
    std::vector<Output> results;
    for (auto& output : outputs) results.push_back(std::move(*output));
    return {std::move(results), std::move(shards)};
  }

  std::vector<M> replicas_;
  std::shared_ptr<detail::ReplicaSet> set_;
};

/// DataParallel(factory): `M` is what the factory makes.
template <detail::ModuleFactory Factory>
DataParallel(Factory, DataParallelOptions = {}) -> DataParallel<typename detail::MadeBy<Factory>::type>;

/// Computes the loss in the replicas' threads, each for its part of the batch, so that no output is gathered
/// (DataParallelCriterion of PyTorch-Encoding, https://github.com/zhanghang1989/PyTorch-Encoding).
///
///     lockstep::DataParallelCriterion criterion([](auto& logits, auto& labels) {
///       return at::cross_entropy_loss(logits, labels); });
///     criterion(model, labels, images).backward();
template <class Criterion>
class DataParallelCriterion {
 public:
  /// `criterion(output, target)` returns the mean over its samples, one number. Called by several threads.
  explicit DataParallelCriterion(Criterion criterion) : criterion_(std::move(criterion)) {}

  /// The mean over the whole batch, a tensor without dimensions: `model`'s forward of `inputs` and `targets`, divided
  /// alike. Throws what DataParallel throws.
  template <class M, class Targets, class... Inputs>
  at::Tensor operator()(DataParallel<M>& model, Targets&& targets, Inputs&&... inputs) const {
    return model.run_mean(
        [this](M& module, auto& target, auto&... input) -> at::Tensor {
          auto output = module->forward(input...);
          return criterion_(output, target);
        },
        std::forward<Targets>(targets), std::forward<Inputs>(inputs)...);
  }

 private:
  Criterion criterion_;
};

}  // namespace lockstep
