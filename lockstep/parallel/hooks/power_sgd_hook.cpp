#include "lockstep/parallel/hooks/power_sgd_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep {
namespace {

/// Columns of each [rows, columns] matrix become orthogonal, of norm 1. matrices: [batch, rows, columns], in
/// place.
void orthogonalize(const at::Tensor& matrices, double epsilon) {
  // In half precision the columns would be far from orthogonal, and their norm might be infinite.
  if (matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16) {
    const at::Tensor wide = matrices.to(at::kFloat);
    orthogonalize(wide, epsilon);
    matrices.copy_(wide);
    return;
  }
  const int64_t columns = matrices.size(2);
  if (columns > 2) {  // for fewer QR is slower
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    const at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm.masked_fill(norm == 0, 1) : norm.add(epsilon));
    if (i + 1 == columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum({1}, /*keepdim=*/true) * column);
  }
}

/// Compressed together: [batch, n, m] is about p [batch, n, rank] times q^T, q [batch, m, rank].
struct Compressed {
  at::Tensor matrices, p, q;
  std::vector<at::Tensor> originals;  // where `matrices` is a copy of them
};

/// What one bucket's hook remembers between its stages.
struct PowerSGDPass {
  std::vector<Compressed> compressed;
  at::Tensor with_error;                // the gradients before compression; undefined without error feedback
  std::vector<at::Tensor> as_they_are;  // gradients that are not compressed
  at::Tensor as_they_are_flat, ps, qs;
};

/// [size(0), the rest]. A matrix is taken as it is, transposed or not; of other gradients the elements are in
/// the order of memory, in which a row of channels_last stays a row.
at::Tensor as_matrix(const at::Tensor& gradient, int64_t n, int64_t m) {
  if (gradient.dim() == 2) return gradient;
  return gradient.as_strided({n, m}, {m, 1}, gradient.storage_offset());
}

void take_matrices(const PowerSGDState& state, const GradBucket& bucket, PowerSGDPass& pass) {
  std::vector<std::vector<at::Tensor>> by_shape;
  for (const at::Tensor& gradient : bucket.gradients()) {
    const int64_t n = gradient.dim() > 0 ? gradient.size(0) : 1;
    const int64_t m = n > 0 ? gradient.numel() / n : 0;
    const int64_t rank = std::min({n, m, state.options.matrix_approximation_rank});
    if (static_cast<double>((n + m) * rank) * state.options.min_compression_rate >=
        static_cast<double>(n * m)) {
      pass.as_they_are.push_back(gradient);
      continue;
    }
    const at::Tensor matrix = as_matrix(gradient, n, m);
    const auto same = std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& matrices) {
      return matrices[0].sizes() == matrix.sizes();
    });
    if (same != by_shape.end()) {
      same->push_back(matrix);
    } else {
      by_shape.push_back({matrix});
    }
  }
  for (auto& matrices : by_shape) {
    if (state.options.batch_tensors_with_same_shape && matrices.size() > 1) {
      Compressed batch;
      batch.matrices = at::stack(matrices);
      batch.originals = std::move(matrices);
      pass.compressed.push_back(std::move(batch));
      continue;
    }
    for (const at::Tensor& matrix : matrices) {
      Compressed single;
      single.matrices = matrix.unsqueeze(0);
      pass.compressed.push_back(std::move(single));
    }
  }
}

/// Adds what earlier passes lost; returns the sum, to find out what this one loses.
at::Tensor add_error(PowerSGDState& state, size_t bucket, const at::Tensor& gradients) {
  const auto error = state.errors.find(bucket);
  if (error != state.errors.end() && error->second.numel() == gradients.numel()) {
    gradients.add_(error->second);
  }
  return gradients.clone();
}

/// Places p and q of each batch in two tensors for the whole bucket, and fills q: with the last pass's, or
/// anew.
void take_low_rank(PowerSGDState& state, size_t bucket, const at::TensorOptions& options,
                   PowerSGDPass& pass) {
  int64_t p_size = 0, q_size = 0;
  const auto rank_of = [&](const Compressed& batch) {
    return std::min(
        {batch.matrices.size(1), batch.matrices.size(2), state.options.matrix_approximation_rank});
  };
  for (const Compressed& batch : pass.compressed) {
    p_size += batch.matrices.size(0) * batch.matrices.size(1) * rank_of(batch);
    q_size += batch.matrices.size(0) * batch.matrices.size(2) * rank_of(batch);
  }
  const auto known_p = state.ps.find(bucket), known_q = state.qs.find(bucket);
  const bool is_warm = state.options.warm_start && known_p != state.ps.end() && known_q != state.qs.end() &&
                       known_p->second.numel() == p_size && known_q->second.numel() == q_size;
  pass.ps = is_warm ? known_p->second.view({-1}) : at::empty({p_size}, options);
  pass.qs = is_warm ? known_q->second.view({-1}) : at::empty({q_size}, options);
  at::Generator generator;
  if (!is_warm) generator = at::detail::createCPUGenerator(static_cast<uint64_t>(state.next_seed()));
  int64_t p_at = 0, q_at = 0;
  for (Compressed& batch : pass.compressed) {
    const int64_t count = batch.matrices.size(0), n = batch.matrices.size(1), m = batch.matrices.size(2);
    const int64_t rank = rank_of(batch);
    batch.p = pass.ps.narrow(0, p_at, count * n * rank).view({count, n, rank});
    batch.q = pass.qs.narrow(0, q_at, count * m * rank).view({count, m, rank});
    p_at += batch.p.numel();
    q_at += batch.q.numel();
    if (!is_warm) batch.q.copy_(at::randn({count, m, rank}, generator, options));
    orthogonalize(batch.q, state.options.orthogonalization_epsilon);
  }
}

void compute_qs(const PowerSGDState& state, PowerSGDPass& pass) {
  for (Compressed& batch : pass.compressed) {
    orthogonalize(batch.p, state.options.orthogonalization_epsilon);
    at::bmm_out(batch.q, batch.matrices.transpose(1, 2), batch.p);
  }
}

void decompress(PowerSGDPass& pass) {
  for (Compressed& batch : pass.compressed) {
    at::bmm_out(batch.matrices, batch.p, batch.q.transpose(1, 2));
    for (size_t i = 0; i < batch.originals.size(); ++i) {
      batch.originals[i].copy_(batch.matrices[static_cast<int64_t>(i)]);
    }
  }
  int64_t at = 0;
  for (const at::Tensor& gradient : pass.as_they_are) {
    const int64_t count = gradient.numel();
    gradient.as_strided({count}, {1}, gradient.storage_offset())
        .copy_(pass.as_they_are_flat.narrow(0, at, count));
    at += count;
  }
}

/// Keeps what the next pass starts from. What is not finite, on any rank, makes q not finite on all of them:
/// that pass leaves nothing, since it would spoil every one that follows.
void remember(PowerSGDState& state, const GradBucket& bucket, PowerSGDPass& pass, const at::Tensor& value) {
  const size_t index = bucket.index();
  if (!at::isfinite(pass.qs).all().item<bool>()) return state.forget(index);
  if (pass.with_error.defined()) {
    const at::Tensor error = pass.with_error.sub_(value);
    // These lost nothing. The difference to their average would add up to nothing over the ranks, but grow.
    for (const at::Tensor& gradient : pass.as_they_are) {
      error.narrow(0, gradient.storage_offset() - value.storage_offset(), gradient.numel()).zero_();
    }
    state.errors[index] = error;
  }
  if (state.options.warm_start) {
    state.ps[index] = pass.ps;
    state.qs[index] = pass.qs;
  }
}

/// The passes that are not compressed yet.
std::optional<Future> before_start(PowerSGDState& state, const ProcessGroup& group, GradBucket& bucket) {
  if (state.iter >= state.options.start_powerSGD_iter) return std::nullopt;
  state.increase_iter(bucket);
  return allreduce_hook(group, bucket);
}

/// p is summed, q averaged: `gradients` become their product. `gradients`: what pass.compressed are views of.
Future communicate(const std::shared_ptr<PowerSGDState>& state, const ProcessGroup& group, GradBucket& bucket,
                   std::shared_ptr<PowerSGDPass> pass, const at::Tensor& gradients) {
  for (Compressed& batch : pass->compressed) at::bmm_out(batch.p, batch.matrices, batch.q);
  std::vector<std::shared_ptr<Work>> works{group.all_reduce_async(pass->ps)};
  if (pass->as_they_are_flat.defined()) {
    works.push_back(group.all_reduce_async(pass->as_they_are_flat, {.op = ReduceOp::AVG}));
  }
  return Future(all_of(std::move(works)), gradients)
      .then([state, group, pass](const at::Tensor& value) -> Future {
        compute_qs(*state, *pass);
        return {group.all_reduce_async(pass->qs, {.op = ReduceOp::AVG}), value};
      })
      .then([state, pass, &bucket](at::Tensor value) -> Future {
        decompress(*pass);
        remember(*state, bucket, *pass, value);
        state->increase_iter(bucket);
        return value;
      });
}

}  // namespace

Future powerSGD_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket) {
  const ProcessGroup group = hook_group(state->process_group, bucket);
  detail::check_real("powerSGD_hook", bucket);
  if (auto average = before_start(*state, group, bucket)) return std::move(*average);
  state->meet(bucket);
  const at::Tensor& gradients = bucket.buffer();
  const auto pass = std::make_shared<PowerSGDPass>();
  if (state->options.use_error_feedback) pass->with_error = add_error(*state, bucket.index(), gradients);
  take_matrices(*state, bucket, *pass);
  if (!pass->as_they_are.empty()) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : pass->as_they_are) {
      flat.push_back(gradient.as_strided({gradient.numel()}, {1}, gradient.storage_offset()));
    }
    pass->as_they_are_flat = at::cat(flat);
  }
  take_low_rank(*state, bucket.index(), gradients.options(), *pass);
  state->total_numel_before_compression += gradients.numel();
  state->total_numel_after_compression +=
      pass->ps.numel() + pass->qs.numel() +
      (pass->as_they_are_flat.defined() ? pass->as_they_are_flat.numel() : 0);
  state->report(bucket);
  return communicate(state, group, bucket, pass, gradients);
}

Future batched_powerSGD_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket) {
  const ProcessGroup group = hook_group(state->process_group, bucket);
  detail::check_real("batched_powerSGD_hook", bucket);
  if (auto average = before_start(*state, group, bucket)) return std::move(*average);
  state->meet(bucket);
  const at::Tensor& gradients = bucket.buffer();
  const int64_t count = gradients.numel();
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const at::Tensor padded = at::zeros({side * side}, gradients.options());
  padded.narrow(0, 0, count).copy_(gradients);
  const auto pass = std::make_shared<PowerSGDPass>();
  if (state->options.use_error_feedback) pass->with_error = add_error(*state, bucket.index(), padded);
  pass->compressed.push_back({padded.view({1, side, side}), {}, {}, {}});
  take_low_rank(*state, bucket.index(), gradients.options(), *pass);
  state->total_numel_before_compression += count;
  state->total_numel_after_compression += pass->ps.numel() + pass->qs.numel();
  state->report(bucket);
  return communicate(state, group, bucket, pass, padded).then([count](const at::Tensor& value) {
    return value.narrow(0, 0, count);
  });
}

}  // namespace lockstep
