#include "lockstep/ops/embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>

#include "lockstep/ops/node.h"
#include "lockstep/parallel/bucket_slot.h"

namespace lockstep::ops {
namespace {

template <class Number>
void add_rows(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, int64_t padding_id) {
  const int64_t width = table.size(1);
  const auto* id = ids.const_data_ptr<int64_t>();
  const auto* from = rows.const_data_ptr<Number>();
  auto* const begin = table.mutable_data_ptr<Number>();
  for (int64_t i = 0; i < ids.numel(); ++i, from += width) {
    if (id[i] == padding_id) continue;
    Number* const to = begin + id[i] * width;
    for (int64_t j = 0; j < width; ++j) to[j] += from[j];
  }
}

struct EmbeddingBackward : OperationNode {  // input: ids
  at::TensorOptions options;
  int64_t rows = 0, width = 0, padding_id = -1;

  std::string name() const override { return "lockstep::EmbeddingBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(1);
    if (!gradients[0].defined() || !task_should_compute_output(0)) return results;
    const at::Tensor ids = input.unpack();
    if (c10::GradMode::is_enabled()) {  // create_graph: by an operation that can be differentiated again
      results[0] = at::embedding_dense_backward(gradients[0], ids, rows, padding_id, false);
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor gradient = gradients[0].contiguous();
    const at::Tensor slot = bucket_slot(next_edge(0), gradient.scalar_type());
    const at::Tensor result =
        slot.defined() && slot.is_contiguous() ? slot : at::empty({rows, width}, options);
    result.zero_();
    if (gradient.scalar_type() == at::kFloat) {
      add_rows<float>(result, ids.contiguous(), gradient, padding_id);
    } else {
      add_rows<double>(result, ids.contiguous(), gradient, padding_id);
    }
    results[0] = handed_out(result, slot);
    return results;
  }
};

bool is_plain_table(const at::Tensor& table) {
  return table.dim() == 2 && table.is_cpu() && table.layout() == at::kStrided &&
         (table.scalar_type() == at::kFloat || table.scalar_type() == at::kDouble);
}

}  // namespace

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, int64_t padding_id) {
  if (!needs_gradient(table) || !is_plain_table(table) || ids.scalar_type() != at::kLong ||
      has_tangent(table)) {
    return at::embedding(table, ids, padding_id);
  }
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = at::embedding(table, ids, padding_id);
  }
  auto node = make_node<EmbeddingBackward>();
  node->options = table.options();
  node->rows = table.size(0);
  node->width = table.size(1);
  node->padding_id = padding_id;
  node->keep_input(ids);
  set_origin(output, std::move(node), table);
  return output;
}

}  // namespace lockstep::ops
