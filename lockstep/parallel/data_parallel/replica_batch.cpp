#include "lockstep/parallel/data_parallel/replica_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel/replica_gradients.h"
#include "lockstep/parallel/data_parallel/scatter_gather.h"

namespace lockstep::detail {
namespace {

/// The weight of a replica's mean in the mean over all samples: 1 if all have as many.
double find_weight(const Shards& shards, size_t part) {
  int64_t rows = 0;
  for (const int64_t size : shards.sizes) rows += size;
  if (rows == 0) return 1;
  return static_cast<double>(shards.sizes[part] * shards.count()) / static_cast<double>(rows);
}

at::Tensor times_weight(const at::Tensor& value, double weight) {
  return weight == 1 ? value : value * weight;
}

at::Tensor mean_loss(const Shards& shards, const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < losses.size(); ++r) {
    if (losses[r].numel() != 1) {
      throw ValueError(
          fmt::format("DataParallel: a replica's loss must be one number, and replica {} returned {}; let "
                      "forward return the mean over its samples",
                      r, losses[r].numel()));
    }
    parts.push_back(times_weight(losses[r].reshape({}), find_weight(shards, r)));
  }
  return parts.size() == 1 ? parts.front().clone() : tree_sum(parts) / static_cast<double>(parts.size());
}

/// The part of a concatenated output's gradient that is replica `part`'s.
at::Tensor take_slice(const at::Tensor& gradient, const std::vector<FoundTensors>& outputs, size_t part,
                      size_t t, int64_t dim) {
  const at::Tensor& output = outputs[part].tensors[t];
  if (output.dim() == 0) return gradient.select(0, static_cast<int64_t>(part));
  int64_t begin = 0;
  for (size_t before = 0; before < part; ++before) begin += outputs[before].tensors[t].size(dim);
  return gradient.narrow(dim, begin, output.size(dim));
}

}  // namespace

Shards divide_batch(const FoundTensors& inputs, const DataParallelOptions& options,
                    const ReplicaPlaces& places) {
  Shards shards;
  shards.whole = inputs.tensors;
  const int64_t rows = batch_rows(inputs, options.dim);
  shards.is_divided = rows >= 0;
  shards.sizes = rows < 0 ? std::vector<int64_t>(static_cast<size_t>(options.replicas), 1)
                          : chunk_sizes(rows, options.replicas);
  const bool with_gradients = c10::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  shards.parts = split_tensors(inputs.tensors, shards.sizes, options.dim);
  for (size_t t = 0; t < shards.whole.size(); ++t) {
    const bool wants = with_gradients && shards.whole[t].defined() && shards.whole[t].requires_grad();
    if (wants) {
      shards.wanting.push_back(t);
      shards.wanting_on.push_back(shards.whole[t].device());
    }
    for (size_t r = 0; r < shards.parts.size(); ++r) {
      at::Tensor& part = shards.parts[r][t];
      if (!part.defined()) continue;
      // The graph behind the batch is the caller's thread's: a replica's ends here.
      // Nor is it told of what another replica does to its own part in place.
      if (with_gradients) part = part.variable_data();
      if (!places.is_on_cpu()) part = brought_to(places.devices[r], part);
      if (wants) part.set_requires_grad(true);
    }
  }
  return shards;
}

JoinedOutputs join_outputs(const ReplicaPass& pass, int64_t dim, const ReplicaPlaces& places) {
  check_alike(pass.outputs);
  const size_t count = pass.outputs.front().tensors.size();
  JoinedOutputs joined{.tensors = std::vector<at::Tensor>(count), .requires_grad = std::vector<bool>(count)};
  const at::NoGradGuard no_grad;
  for (size_t t = 0; t < count; ++t) {
    std::vector<at::Tensor> parts;
    for (const FoundTensors& output : pass.outputs) {
      const at::Tensor& part = output.tensors[t];
      parts.push_back(places.is_on_cpu() ? part : brought_to(places.output, part));
      if (part.defined() && part.requires_grad()) joined.requires_grad[t] = true;
    }
    joined.tensors[t] = pass.join == Join::mean ? mean_loss(pass.shards, parts) : join_tensors(parts, dim);
  }
  return joined;
}

at::Tensor divide_gradient(const ReplicaPass& pass, const at::Tensor& gradient, size_t replica, size_t t,
                           int64_t dim) {
  if (pass.join == Join::concatenate) return take_slice(gradient, pass.outputs, replica, t, dim);
  return times_weight(gradient, find_weight(pass.shards, replica))
      .reshape(pass.outputs[replica].tensors[t].sizes());
}

std::vector<at::Tensor> take_input_gradients(const ReplicaPass& pass, int64_t dim,
                                             const ReplicaPlaces& places) {
  const Shards& shards = pass.shards;
  const bool averages = pass.join == Join::mean;
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < shards.wanting.size(); ++i) {
    const size_t t = shards.wanting[i];
    std::vector<at::Tensor> parts;
    bool any = false;
    for (const auto& part : shards.parts) {
      at::Tensor gradient = part[t].grad();
      any = any || gradient.defined();
      parts.push_back(gradient.defined() ? gradient : at::zeros_like(part[t]));
      if (!places.is_on_cpu()) parts.back() = brought_to(shards.wanting_on[i], parts.back());
      part[t].mutable_grad().reset();
    }
    if (!any) {
      results.emplace_back();
      continue;
    }
    const bool is_divided = shards.is_divided && parts.front().dim() > 0;
    at::Tensor whole = is_divided ? at::cat(parts, dim) : tree_sum(parts);
    results.push_back(averages && shards.count() > 1 ? whole / shards.count() : whole);
  }
  return results;
}

}  // namespace lockstep::detail
