#include "lockstep/models/token_layout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor placed(const at::Tensor& x, const at::Tensor& index, int64_t n) {
  return at::zeros({n, x.size(1)}, x.options()).index_copy_(0, index, x);
}

// index_select's own gradient adds rows up, which is slow; here no row is taken twice.
struct TakeRows : torch::autograd::Function<TakeRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& index) {
    context->save_for_backward({index});
    context->saved_data["n"] = x.size(0);
    return at::index_select(x, 0, index);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad) {
    return {placed(grad[0], context->get_saved_variables()[0], context->saved_data["n"].toInt()), {}};
  }
};

struct PlaceRows : torch::autograd::Function<PlaceRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& index,
                            int64_t n) {
    context->save_for_backward({index});
    return placed(x, index, n);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad) {
    return {at::index_select(grad[0], 0, context->get_saved_variables()[0]), {}, {}};
  }
};

}  // namespace

TokenLayout make_token_layout(const at::Tensor& attention_mask, at::IntArrayRef sizes, at::Device device) {
  TokenLayout layout;
  layout.batch = sizes[0];
  layout.length = sizes[1];
  layout.tokens = layout.batch * layout.length;
  const auto whole_numbers = at::TensorOptions().dtype(at::kLong);
  layout.first = at::arange(0, layout.tokens, layout.length, whole_numbers).to(device);
  if (!attention_mask.defined()) return layout;
  if (attention_mask.sizes() != sizes) {
    throw ValueError(fmt::format("attention_mask has {} x {} values, input_ids {} x {}",
                                 attention_mask.size(0), attention_mask.size(1), layout.batch,
                                 layout.length));
  }

  const at::Tensor mask = attention_mask.to(at::kCPU, at::kLong).contiguous();
  const int64_t* is_token = mask.const_data_ptr<int64_t>();
  const int64_t count =
      std::count_if(is_token, is_token + layout.tokens, [](int64_t value) { return value != 0; });
  if (count == layout.tokens) return layout;

  // Finite, so that a sequence of nothing but padding gives no NaN; far below any score in bfloat16, too.
  constexpr float minus_infinity = -1e30F;
  layout.bias = at::empty({layout.batch, 1, 1, layout.length}, at::kFloat);
  at::Tensor rows = at::empty({count}, whole_numbers);
  at::Tensor first = at::empty({layout.batch}, whole_numbers);
  auto* bias = layout.bias.data_ptr<float>();
  auto* row = rows.data_ptr<int64_t>();
  bool all_begin_with_a_token = true;
  int64_t taken = 0;
  for (int64_t position = 0; position < layout.tokens; ++position) {
    if (position % layout.length == 0) {
      all_begin_with_a_token = all_begin_with_a_token && is_token[position] != 0;
      first.data_ptr<int64_t>()[position / layout.length] = taken;
    }
    bias[position] = is_token[position] != 0 ? 0 : minus_infinity;
    if (is_token[position] != 0) row[taken++] = position;
  }
  layout.bias = layout.bias.to(device);
  if (all_begin_with_a_token) {
    layout.tokens = count;
    layout.rows = rows.to(device);
    layout.first = first.to(device);
  }
  return layout;
}

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index) { return TakeRows::apply(x, index); }

at::Tensor place_rows(const at::Tensor& x, const at::Tensor& index, int64_t n) {
  return PlaceRows::apply(x, index, n);
}

}  // namespace lockstep::models
