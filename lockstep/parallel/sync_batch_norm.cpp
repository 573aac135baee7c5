#include "lockstep/parallel/sync_batch_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/modules/container/sequential.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/parallel/autograd_node.h"

namespace lockstep {
namespace {

/// Whose batches are normalized together.
struct Peers {
  ProcessGroup group;
  std::shared_ptr<detail::BatchExchange> exchange;  // null: the ranks of the group
  const void* layer;

  std::vector<at::Tensor> gather(const at::Tensor& own) const {
    return exchange ? exchange->gather(group, {layer, /*is_backward=*/false}, own) : group.all_gather(own);
  }
  at::Tensor sum(const at::Tensor& own) const {
    if (exchange) return exchange->sum(group, {layer, /*is_backward=*/true}, own);
    at::Tensor sum = own.clone();
    group.all_reduce(sum, {.wire_dtype = WireDtype::EXACT});
    return sum;
  }
};

/// Over the batches of all ranks, per channel.
struct Statistics {
  Statistics(Peers peers_) : peers(std::move(peers_)) {}
  Peers peers;
  at::Tensor mean, variance, inverse_std;  // double [channels]; the variance divides by count
  double count = 0;                        // values a channel
};

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dimensions{0};
  for (int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

/// [channels] as something that broadcasts over an input.
at::Tensor over_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(input.scalar_type()).view(shape);
}

/// In half precision a mean would have two or three digits.
at::Tensor widened(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

/// Every rank's mean, sum of squared distances from it, and count are combined in rank order, in double:
/// no difference of large sums, and the same bits on all ranks.
std::shared_ptr<const Statistics> gather_statistics(const at::Tensor& input, Peers peers, double eps) {
  const int64_t channels = input.size(1);
  const double own_count = static_cast<double>(input.numel()) / static_cast<double>(channels);
  const at::Tensor own = at::zeros({3, channels}, input.options().dtype(at::kDouble));
  if (own_count > 0) {
    const auto [variance, mean] = at::var_mean(widened(input), all_but_channels(input), /*unbiased=*/false);
    own[0].copy_(mean);
    own[1].copy_(variance).mul_(own_count);
    own[2].fill_(own_count);
  }
  auto result = std::make_shared<Statistics>(std::move(peers));
  const std::vector<at::Tensor> all = result->peers.gather(own);
  at::Tensor sum = at::zeros({channels}, own.options());
  for (const at::Tensor& theirs : all) {
    sum += theirs[0] * theirs[2];
    result->count += theirs[2][0].item<double>();
  }
  if (result->count < 2) {
    throw ValueError(
        fmt::format("SyncBatchNorm: training needs more than one value per channel over all ranks; this "
                    "input has {}",
                    static_cast<int64_t>(result->count)));
  }
  result->mean = sum / result->count;
  at::Tensor squares = at::zeros({channels}, own.options());
  for (const at::Tensor& theirs : all) {
    squares += theirs[1] + theirs[2] * (theirs[0] - result->mean).square();
  }
  result->variance = squares / result->count;
  result->inverse_std = (result->variance + eps).rsqrt();
  return result;
}

/// A Node, since torch::autograd::Function takes 6 s to compile.
struct NormalizeBackward : torch::autograd::Node {
  torch::autograd::SavedVariable saved_input, saved_weight;
  std::shared_ptr<const Statistics> statistics;

  std::string name() const override { return "lockstep::NormalizeBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved_input.reset_data();
    saved_weight.reset_data();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const at::Tensor original = saved_input.unpack(), weight = saved_weight.unpack();
    if (!c10::GradMode::is_enabled()) return differentiate(gradients[0], original, weight);
    // create_graph: a derivative of what follows would lack the other ranks' part.
    const auto refusal = make_node<torch::autograd::Error>(
        "SyncBatchNorm is not differentiable twice",
        torch::autograd::collect_next_edges(gradients[0], original, weight));
    torch::autograd::variable_list result;
    {
      const at::NoGradGuard no_grad;
      result = differentiate(gradients[0], original, weight);
    }
    torch::autograd::set_history(result, refusal);
    return result;
  }

 private:
  torch::autograd::variable_list differentiate(const at::Tensor& given, const at::Tensor& original,
                                               const at::Tensor& weight) const {
    const at::Tensor input = widened(original);
    // All ranks take part in the reduction, also one whose output was not used.
    const at::Tensor gradient = given.defined() ? widened(given) : at::zeros_like(input);
    const Statistics& all = *statistics;
    const at::Tensor centered = input - over_channels(all.mean, input);
    const std::vector<int64_t> dimensions = all_but_channels(input);
    const at::Tensor own = at::empty({2, input.size(1)}, input.options().dtype(at::kDouble));
    own[0].copy_(gradient.sum(dimensions, false, at::kDouble));
    own[1].copy_((gradient * centered).sum(dimensions, false, at::kDouble));
    const at::Tensor sums = all.peers.sum(own);
    const at::Tensor scale = weight.defined() ? weight.to(at::kDouble) * all.inverse_std : all.inverse_std;
    const at::Tensor slope = sums[1] / all.count * all.inverse_std.square();
    const at::Tensor for_input =
        ((gradient - over_channels(sums[0] / all.count, input) - centered * over_channels(slope, input)) *
         over_channels(scale, input))
            .to(original.scalar_type());
    if (!weight.defined()) return {for_input, {}, {}};
    return {for_input, (own[1] * all.inverse_std).to(weight.scalar_type()), own[0].to(weight.scalar_type())};
  }
};

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     std::shared_ptr<const Statistics> statistics, double eps) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    // A variance in half precision would overflow. LibTorch takes float beside an input in half precision, for all of them.
    const at::ScalarType dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto as_statistics = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(dtype) : tensor;
    };
    output =
        input.numel() == 0
            ? input.clone()
            : std::get<0>(at::native_batch_norm(input, as_statistics(weight), as_statistics(bias),
                                                statistics->mean.to(dtype), statistics->variance.to(dtype),
                                                /*training=*/false, 0.0, eps));
  }
  const auto wants_gradient = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  if (c10::GradMode::is_enabled() &&
      (wants_gradient(input) || wants_gradient(weight) || wants_gradient(bias))) {
    auto node = make_node<NormalizeBackward>();
    node->saved_input = torch::autograd::SavedVariable(input, /*is_output=*/false);
    node->saved_weight = torch::autograd::SavedVariable(weight, /*is_output=*/false);
    node->statistics = std::move(statistics);
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
    torch::autograd::set_history(output, node);
  }
  return output;
}

}  // namespace

void BatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw ValueError(fmt::format("BatchNorm: the input must be [batch, {}, ...] but has {} dimensions{}",
                               options.num_features(), input.dim(),
                               input.dim() < 2 ? "" : fmt::format(" and {} channels", input.size(1))));
}

at::Tensor BatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  std::shared_ptr<detail::BatchExchange> exchange = group_ ? exchange_.lock() : nullptr;
  const int parts = exchange ? exchange->parts() : group_ ? group_->size() : 1;
  if (is_training() && parts == 1 && input.numel() == input.size(1)) {
    throw ValueError(fmt::format(
        "BatchNorm: training needs more than one value per channel; this input, [{}], has 1: use batches of 2 or more "
        "samples; dataloader_drop_last leaves out an incomplete last one",
        fmt::join(input.sizes(), ", ")));
  }
  if (!is_training() || parts == 1) return torch::nn::BatchNormImplBase<2, BatchNormImpl>::forward(input);
  std::shared_ptr<const Statistics> statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = gather_statistics(input, {*own_group_, std::move(exchange), this}, options.eps());
    if (options.track_running_stats()) {
      const double factor = update_factor();
      const double unbiased = statistics->count / (statistics->count - 1);
      running_mean.lerp_(statistics->mean.to(running_mean.scalar_type()), factor);
      running_var.lerp_((statistics->variance * unbiased).to(running_var.scalar_type()), factor);
    }
  }
  return normalize(input, weight, bias, std::move(statistics), options.eps());
}

double BatchNormImpl::update_factor() {
  num_batches_tracked.add_(1);
  return options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

void detail::BatchNormAccess::share(BatchNormImpl& layer,
                                    const torch::OrderedDict<std::string, at::Tensor>& parameters,
                                    const torch::OrderedDict<std::string, at::Tensor>& buffers) {
  for (const auto& item : parameters) layer.parameters_[item.key()] = item.value();
  if (layer.options.affine()) {
    layer.weight = layer.parameters_["weight"];
    layer.bias = layer.parameters_["bias"];
  }
  if (layer.options.track_running_stats()) {
    // Module keeps its buffers to itself: these share the memory.
    layer.running_mean.set_data(buffers["running_mean"]);
    layer.running_var.set_data(buffers["running_var"]);
    layer.num_batches_tracked.set_data(buffers["num_batches_tracked"]);
  }
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     std::optional<ProcessGroup> group)
    : BatchNormImpl(options) {
  set_process_group(group ? *group : default_world());
}

namespace {

/// A synchronized twin of `child` if that is a B, else nothing.
template <class B>
std::shared_ptr<SyncBatchNormImpl> make_twin(torch::nn::Module& child, const ProcessGroup& group) {
  const auto* old = child.as<B>();
  if (old == nullptr) return nullptr;
  auto twin = std::make_shared<SyncBatchNormImpl>(old->options, group);
  detail::BatchNormAccess::share(*twin, child.named_parameters(false), child.named_buffers(false));
  twin->train(child.is_training());
  return twin;
}

std::shared_ptr<SyncBatchNormImpl> make_twin(torch::nn::Module& child, const ProcessGroup& group) {
  if (auto twin = make_twin<torch::nn::BatchNorm1dImpl>(child, group)) return twin;
  if (auto twin = make_twin<torch::nn::BatchNorm2dImpl>(child, group)) return twin;
  return make_twin<torch::nn::BatchNorm3dImpl>(child, group);
}

[[noreturn]] void refuse(const std::string& name, const std::string& place) {
  throw ValueError(
      fmt::format("convert_sync_batchnorm: cannot convert {}, which is {}; make it a lockstep::BatchNorm "
                  "or a child of a torch::nn::Sequential",
                  name, place));
}

/// Collects what is to be done, so that an error leaves everything as it was.
void plan_conversion(torch::nn::Module& module, const std::string& prefix, const ProcessGroup& group,
                     std::vector<std::function<void()>>& steps) {
  auto* const sequential = module.as<torch::nn::SequentialImpl>();
  int64_t index = -1;
  for (const auto& item : module.named_children()) {
    ++index;
    const std::string name = prefix + item.key();
    torch::nn::Module& child = *item.value();
    if (auto* own = dynamic_cast<BatchNormImpl*>(&child)) {
      steps.emplace_back([own, group] { own->set_process_group(group); });
    } else if (auto twin = make_twin(child, group)) {
      if (sequential == nullptr)
        refuse(name, fmt::format("a member of {} whose class is fixed", module.name()));
      steps.emplace_back([sequential, index, key = item.key(), twin] {
        *(sequential->begin() + index) = torch::nn::AnyModule(twin);
        sequential->replace_module(key, twin);
      });
    } else {
      plan_conversion(child, name + ".", group, steps);
    }
  }
}

}  // namespace

void convert_sync_batchnorm(torch::nn::Module& module, std::optional<ProcessGroup> group) {
  const ProcessGroup target = group ? *group : default_world();
  if (auto* own = dynamic_cast<BatchNormImpl*>(&module)) return own->set_process_group(target);
  if (make_twin(module, target)) refuse(module.name(), "the module itself");
  std::vector<std::function<void()>> steps;
  plan_conversion(module, "", target, steps);
  for (const auto& step : steps) step();
}

void detail::duplicate_sync_batchnorm_groups(const torch::nn::Module& module) {
  std::map<const ProcessGroup::Impl*, ProcessGroup> duplicates;
  for (const auto& child : module.modules()) {
    auto* const layer = dynamic_cast<BatchNormImpl*>(child.get());
    if (layer == nullptr || !layer->process_group() || !layer->process_group()->is_member()) continue;
    const ProcessGroup& group = *layer->process_group();
    auto found = duplicates.find(&group.impl());
    if (found == duplicates.end()) found = duplicates.emplace(&group.impl(), group.duplicate()).first;
    BatchNormAccess::use_duplicate(*layer, found->second);
  }
}

std::vector<ProcessGroup> detail::list_sync_batchnorm_groups(const torch::nn::Module& module) {
  std::vector<ProcessGroup> groups;
  for (const auto& child : module.modules()) {
    const auto* const layer = dynamic_cast<const BatchNormImpl*>(child.get());
    if (layer == nullptr) continue;
    const auto& duplicate = BatchNormAccess::duplicate_of(*layer);
    if (duplicate && duplicate->is_member()) groups.push_back(*duplicate);
  }
  return groups;
}

}  // namespace lockstep
