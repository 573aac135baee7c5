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
#include <optional>
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
  std::vector<std::string> names;     // of their parameters
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
  struct Named {
    at::Tensor matrix;
    std::string name;
  };
  std::vector<std::vector<Named>> by_shape;
  const std::vector<at::Tensor> gradients = bucket.gradients();
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    const int64_t n = gradient.dim() > 0 ? gradient.size(0) : 1;
    const int64_t m = n > 0 ? gradient.numel() / n : 0;
    const int64_t rank = std::min({n, m, state.options.matrix_approximation_rank});
    if (static_cast<double>((n + m) * rank) * state.options.min_compression_rate >=
        static_cast<double>(n * m)) {
      pass.as_they_are.push_back(gradient);
      continue;
    }
    Named named{as_matrix(gradient, n, m), std::string(bucket.parameter_names()[i])};
    const auto same = std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& matrices) {
      return matrices[0].matrix.sizes() == named.matrix.sizes();
    });
    if (same != by_shape.end()) {
      same->push_back(std::move(named));
    } else {
      by_shape.emplace_back().push_back(std::move(named));
    }
  }
  for (const auto& matrices : by_shape) {
    if (state.options.batch_tensors_with_same_shape && matrices.size() > 1) {
      Compressed batch;
      for (const Named& named : matrices) {
        batch.originals.push_back(named.matrix);
        batch.names.push_back(named.name);
      }
      batch.matrices = at::stack(batch.originals);
      pass.compressed.push_back(std::move(batch));
      continue;
    }
    for (const Named& named : matrices) {
      Compressed single;
      single.matrices = named.matrix.unsqueeze(0);
      single.names.push_back(named.name);
      pass.compressed.push_back(std::move(single));
    }
  }
}

/// What lies behind the gradients in the square of the batched hook.
at::Tensor padding_of(const GradBucket& bucket, const at::Tensor& gradients) {
  const int64_t count = bucket.buffer().numel();
  return gradients.narrow(0, count, gradients.numel() - count);
}

/// Adds what earlier passes lost; returns the sum, to find out what this one loses.
at::Tensor add_error(PowerSGDState& state, const GradBucket& bucket, const at::Tensor& gradients) {
  for (size_t i = 0; i < bucket.parameters().size(); ++i) {
    const auto error = state.errors.find(bucket.parameter_names()[i]);
    const int64_t count = bucket.parameters()[i].numel();
    if (error == state.errors.end() || error->second.numel() != count) continue;
    gradients.narrow(0, bucket.offsets()[i], count).add_(error->second.to(gradients.device()));
  }
  const at::Tensor rest = padding_of(bucket, gradients);
  const auto error = state.errors.find(detail::joined_names(bucket));
  if (error != state.errors.end() && error->second.numel() == rest.numel())
    rest.add_(error->second.to(rest.device()));
  return gradients.clone();
}

/// What is known of `name`, of `count` elements; undefined where there is none.
at::Tensor known(const PowerSGDState::ByName& all, const std::string& name, int64_t count) {
  const auto found = all.find(name);
  return found != all.end() && found->second.numel() == count ? found->second : at::Tensor();
}

/// Places p and q of each batch in two tensors for the whole bucket, and fills q: with the last pass's, or
/// anew.
void take_low_rank(PowerSGDState& state, const at::TensorOptions& options, PowerSGDPass& pass) {
  int64_t p_size = 0, q_size = 0;
  const auto rank_of = [&](const Compressed& batch) {
    return std::min(
        {batch.matrices.size(1), batch.matrices.size(2), state.options.matrix_approximation_rank});
  };
  for (const Compressed& batch : pass.compressed) {
    p_size += batch.matrices.size(0) * batch.matrices.size(1) * rank_of(batch);
    q_size += batch.matrices.size(0) * batch.matrices.size(2) * rank_of(batch);
  }
  pass.ps = at::empty({p_size}, options);
  pass.qs = at::empty({q_size}, options);
  // One draw for a bucket in which something starts anew, as in Python.
  std::optional<at::Generator> generator;
  int64_t p_at = 0, q_at = 0;
  for (Compressed& batch : pass.compressed) {
    const int64_t count = batch.matrices.size(0), n = batch.matrices.size(1), m = batch.matrices.size(2);
    const int64_t rank = rank_of(batch);
    batch.p = pass.ps.narrow(0, p_at, count * n * rank).view({count, n, rank});
    batch.q = pass.qs.narrow(0, q_at, count * m * rank).view({count, m, rank});
    p_at += batch.p.numel();
    q_at += batch.q.numel();
    std::vector<at::Tensor> starts;
    for (const std::string& name : batch.names) {
      const at::Tensor start = state.options.warm_start ? known(state.qs, name, m * rank) : at::Tensor();
      if (start.defined()) starts.push_back(start.view({m, rank}));
    }
    if (starts.size() == batch.names.size()) {
      for (int64_t i = 0; i < count; ++i) batch.q[i].copy_(starts[static_cast<size_t>(i)]);
    } else {
      if (!generator) generator = at::detail::createCPUGenerator(static_cast<uint64_t>(state.next_seed()));
      batch.q.copy_(at::randn({count, m, rank}, generator, options.device(at::kCPU)));
    }
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
  if (!at::isfinite(pass.qs).all().item<bool>()) return state.forget(bucket);
  if (pass.with_error.defined()) {
    const at::Tensor error = pass.with_error.sub_(value);
    // These lost nothing. The difference to their average would add up to nothing over the ranks, but grow.
    for (const at::Tensor& gradient : pass.as_they_are) {
      error.narrow(0, gradient.storage_offset() - value.storage_offset(), gradient.numel()).zero_();
    }
    for (size_t i = 0; i < bucket.parameters().size(); ++i) {
      state.errors[std::string(bucket.parameter_names()[i])] =
          error.narrow(0, bucket.offsets()[i], bucket.parameters()[i].numel());
    }
    const at::Tensor rest = padding_of(bucket, error);
    if (rest.numel() > 0) state.errors[detail::joined_names(bucket)] = rest;
  }
  if (!state.options.warm_start) return;
  for (const Compressed& batch : pass.compressed) {
    for (size_t i = 0; i < batch.names.size(); ++i) {
      state.ps[batch.names[i]] = batch.p[static_cast<int64_t>(i)];
      state.qs[batch.names[i]] = batch.q[static_cast<int64_t>(i)];
    }
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
  state->keep_for_step();
  if (auto average = before_start(*state, group, bucket)) return std::move(*average);
  const at::Tensor& gradients = bucket.buffer();
  const auto pass = std::make_shared<PowerSGDPass>();
  if (state->options.use_error_feedback) pass->with_error = add_error(*state, bucket, gradients);
  take_matrices(*state, bucket, *pass);
  if (!pass->as_they_are.empty()) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : pass->as_they_are) {
      flat.push_back(gradient.as_strided({gradient.numel()}, {1}, gradient.storage_offset()));
    }
    pass->as_they_are_flat = at::cat(flat);
  }
  take_low_rank(*state, gradients.options(), *pass);
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
  state->keep_for_step();
  if (auto average = before_start(*state, group, bucket)) return std::move(*average);
  const at::Tensor& gradients = bucket.buffer();
  const int64_t count = gradients.numel();
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const at::Tensor padded = at::zeros({side * side}, gradients.options());
  padded.narrow(0, 0, count).copy_(gradients);
  const auto pass = std::make_shared<PowerSGDPass>();
  if (state->options.use_error_feedback) pass->with_error = add_error(*state, bucket, padded);
  pass->compressed.push_back({padded.view({1, side, side}), {}, {}, {}, {detail::joined_names(bucket)}});
  take_low_rank(*state, gradients.options(), *pass);
  state->total_numel_before_compression += count;
  state->total_numel_after_compression += pass->ps.numel() + pass->qs.numel();
  state->report(bucket);
  return communicate(state, group, bucket, pass, padded).then([count](const at::Tensor& value) {
    return value.narrow(0, 0, count);
  });
}

}  // namespace lockstep
