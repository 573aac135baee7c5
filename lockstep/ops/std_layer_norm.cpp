#include "lockstep/ops/std_layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/node.h"
#include "lockstep/parallel/bucket_slot.h"

namespace lockstep::ops {
namespace {

/// The gradients of alpha and bias are summed within blocks of so many rows, then over the blocks: the same bits for any
/// number of threads.
constexpr int64_t kBlockRows = 64;

/// Sums term(0) to term(n - 1) in 16 parts, which fill vector registers.
template <class T, class Term>
T add_terms(int64_t n, const Term& term) {
  constexpr int64_t kParts = 16;
  T parts[kParts] = {};
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int64_t j = 0; j < kParts; ++j) parts[j] += term(i + j);
  }
  for (int64_t j = 0; i < n; ++i, ++j) parts[j] += term(i);
  T sum = 0;
  for (const T part : parts) sum += part;
  return sum;
}

int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, at::internal::GRAIN_SIZE / width); }

/// What backward needs of a row: scale = 1 / (deviation + eps), and fall = scale^2 / ((width - 1) deviation), by which scale
/// falls as the deviation grows; 0 for rows of equal values, as in at::std's backward.
template <class T>
struct Row {
  T mean, scale, fall;
};

template <class T>
void normalize(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps,
               const at::Tensor& rows, const at::Tensor& output) {
  const int64_t width = x.size(1);
  const T* const a = alpha.const_data_ptr<T>();
  const T* const b = bias.const_data_ptr<T>();
  const T* const all = x.const_data_ptr<T>();
  T* const out = output.mutable_data_ptr<T>();
  auto* const kept = reinterpret_cast<Row<T>*>(rows.mutable_data_ptr<T>());
  at::parallel_for(0, x.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* const from = all + r * width;
      T* const to = out + r * width;
      const T mean = add_terms<T>(width, [&](int64_t i) { return from[i]; }) / static_cast<T>(width);
      const T squares = add_terms<T>(width, [&](int64_t i) { return (from[i] - mean) * (from[i] - mean); });
      const T deviation = std::sqrt(squares / static_cast<T>(width - 1));
      const T scale = 1 / (deviation + static_cast<T>(eps));
      kept[r] = {mean, scale, deviation > 0 ? scale * scale / (static_cast<T>(width - 1) * deviation) : T{0}};
      for (int64_t i = 0; i < width; ++i) to[i] = (from[i] - mean) * scale * a[i] + b[i];
    }
  });
}

/// Computes, for one block of rows, the gradient of x, and sums for those of alpha and bias.
template <class T>
void differentiate_rows(const T* x, const T* gradient, const T* alpha, const Row<T>* rows, int64_t count,
                        int64_t width, T* of_x, T* of_alpha, T* of_bias) {
  for (int64_t r = 0; r < count; ++r, x += width, gradient += width, of_x += width) {
    const T mean = rows[r].mean, scale = rows[r].scale, fall = rows[r].fall;
    const T mean_gradient =
        add_terms<T>(width, [&](int64_t i) { return gradient[i] * alpha[i]; }) / static_cast<T>(width);
    const T along =
        fall * add_terms<T>(width, [&](int64_t i) { return gradient[i] * alpha[i] * (x[i] - mean); });
    for (int64_t i = 0; i < width; ++i) {
      const T centered = x[i] - mean;
      of_alpha[i] += gradient[i] * centered * scale;
      of_bias[i] += gradient[i];
      of_x[i] = (gradient[i] * alpha[i] - mean_gradient) * scale - centered * along;
    }
  }
}

template <class T>
void differentiate(const at::Tensor& x, const at::Tensor& gradient, const at::Tensor& alpha,
                   const at::Tensor& rows, const at::Tensor& of_x, const at::Tensor& of_alpha,
                   const at::Tensor& of_bias) {
  const int64_t count = x.size(0), width = x.size(1), blocks = (count + kBlockRows - 1) / kBlockRows;
  const at::Tensor sums = at::zeros({2, blocks, width}, x.options().requires_grad(false));
  T* const alphas = sums.mutable_data_ptr<T>();
  T* const biases = alphas + blocks * width;
  const auto* const kept = reinterpret_cast<const Row<T>*>(rows.const_data_ptr<T>());
  const int64_t task = std::max<int64_t>(1, rows_per_task(width) / kBlockRows);
  at::parallel_for(0, blocks, task, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows, at = first * width;
      differentiate_rows<T>(x.const_data_ptr<T>() + at, gradient.const_data_ptr<T>() + at,
                            alpha.const_data_ptr<T>(), kept + first, std::min(kBlockRows, count - first),
                            width, of_x.mutable_data_ptr<T>() + at, alphas + block * width,
                            biases + block * width);
    }
  });
  const at::Tensor totals[] = {of_alpha, of_bias};
  for (int i = 0; i < 2; ++i) {
    T* const total = totals[i].mutable_data_ptr<T>();
    const T* part = i == 0 ? alphas : biases;
    std::copy_n(part, width, total);
    for (int64_t block = 1; block < blocks; ++block) {
      part += width;
      for (int64_t c = 0; c < width; ++c) total[c] += part[c];
    }
  }
}

struct StdLayerNormBackward : torch::autograd::Node {
  torch::autograd::SavedVariable input, alpha, rows;

  std::string name() const override { return "lockstep::StdLayerNormBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    alpha.reset_data();
    rows.reset_data();
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(3);
    if (!gradients[0].defined()) return results;
    TORCH_CHECK(!c10::GradMode::is_enabled(), "std_layer_norm has no second derivative");
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor x = input.unpack(), weight = alpha.unpack().contiguous(), kept = rows.unpack();
    const at::Tensor gradient = gradients[0].to(x.scalar_type()).contiguous();
    // Where DistributedDataParallel wants the gradients of alpha and bias, if anywhere.
    const auto slot_of = [&](size_t edge) {
      return task_should_compute_output(edge) ? bucket_slot(next_edge(edge), x.scalar_type()) : at::Tensor();
    };
    const at::Tensor alpha_slot = slot_of(1), bias_slot = slot_of(2), of_x = at::empty_like(x);
    const at::Tensor of_alpha = alpha_slot.defined() ? alpha_slot : at::empty({x.size(1)}, x.options());
    const at::Tensor of_bias = bias_slot.defined() ? bias_slot : at::empty({x.size(1)}, x.options());
    if (x.scalar_type() == at::kFloat) {
      differentiate<float>(x, gradient, weight, kept, of_x, of_alpha, of_bias);
    } else {
      differentiate<double>(x, gradient, weight, kept, of_x, of_alpha, of_bias);
    }
    if (task_should_compute_output(0)) results[0] = of_x;
    if (task_should_compute_output(1)) results[1] = handed_out(of_alpha, alpha_slot);
    if (task_should_compute_output(2)) results[2] = handed_out(of_bias, bias_slot);
    return results;
  }
};

// Any device and dtype, by operations that LibTorch differentiates.
at::Tensor composed(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps) {
  const at::Tensor centered = x - x.mean(-1, true);
  return at::addcmul(bias, centered / (x.std(-1, true, true) + eps), alpha);
}

}  // namespace

at::Tensor std_layer_norm(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps) {
  const auto fits = [&](const at::Tensor& of_columns) {
    return of_columns.dim() == 1 && of_columns.size(0) == x.size(1) && of_columns.is_cpu() &&
           of_columns.layout() == at::kStrided && of_columns.scalar_type() == x.scalar_type();
  };
  const bool plain = x.dim() == 2 && x.is_cpu() && x.layout() == at::kStrided &&
                     (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) && fits(alpha) &&
                     fits(bias) && !has_tangent(x, alpha, bias);
  if (!plain) return composed(x, alpha, bias, eps);
  if (x.numel() == 0) return composed(x, alpha, bias, eps);
  const at::Tensor input = x.contiguous();
  at::Tensor output, rows;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = at::empty_like(input);
    rows = at::empty({input.size(0), 3}, input.options().requires_grad(false));
    if (x.scalar_type() == at::kFloat) {
      normalize<float>(input, alpha.contiguous(), bias.contiguous(), eps, rows, output);
    } else {
      normalize<double>(input, alpha.contiguous(), bias.contiguous(), eps, rows, output);
    }
  }
  if (needs_gradient(x, alpha, bias)) {
    auto node = make_node<StdLayerNormBackward>();
    node->input = {input, /*is_output=*/false};
    node->alpha = {alpha, /*is_output=*/false};
    node->rows = {rows, /*is_output=*/false};
    set_origin(output, std::move(node), x, alpha, bias);
  }
  return output;
}

}  // namespace lockstep::ops
