#include "lockstep/zoo/models/token_layout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/autograd_node.h"

namespace lockstep::models {
namespace {

at::Tensor placed(const at::Tensor& x, const at::Tensor& index, int64_t n) {
  return at::index_copy(at::zeros({n, x.size(1)}, x.options()), 0, index, x);
}

// index_select's own gradient adds rows up, which is slow; here no row is taken twice. A node of its own and
// not autograd::Function, whose header takes 10 s to compile.
struct TakeRowsBackward : torch::autograd::Node {
  at::Tensor index;
  int64_t rows = 0;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grad) override {
    if (!grad[0].defined()) return {at::Tensor()};
    return {placed(grad[0], index, rows)};
  }
};

}  // namespace

TokenLayout make_token_layout(const at::Tensor& attention_mask, at::IntArrayRef sizes, at::Device device,
                              bool with_padding) {
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
  constexpr float kMinusInfinity = -1e30F;
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
    bias[position] = is_token[position] != 0 ? 0 : kMinusInfinity;
    if (is_token[position] != 0) row[taken++] = position;
  }
  layout.bias = layout.bias.to(device);
  if (all_begin_with_a_token && !with_padding) {
    layout.tokens = count;
    layout.rows = rows.to(device);
    layout.first = first.to(device);
  }
  return layout;
}

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index) {
  at::Tensor taken = at::index_select(x.detach(), 0, index);
  if (c10::GradMode::is_enabled() && x.requires_grad()) {
    auto node = make_node<TakeRowsBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    node->index = index;
    node->rows = x.size(0);
    torch::autograd::set_history(taken, node);
  }
  return taken;
}

at::Tensor place_rows(const at::Tensor& x, const at::Tensor& index, int64_t n) { return placed(x, index, n); }

}  // namespace lockstep::models
