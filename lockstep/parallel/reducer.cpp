#include "lockstep/parallel/reducer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// Calls a function each time a parameter's gradient has been accumulated.
class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

/// A tensor in the memory of `flat` at `offset` elements, laid out as `like` where that is dense
/// (channels_last too).
at::Tensor view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  const at::Tensor view = like.is_non_overlapping_and_dense()
                              ? flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset)
                              : flat.narrow(0, offset, like.numel()).view(like.sizes());
  // Not a view to autograd: Optimizer::zero_grad detaches gradients in place, which it refuses for views.
  return view.variable_data();
}

}  // namespace

Reducer::Reducer(ProcessGroup group, ReducerOptions options) : group_(std::move(group)), options_(options) {}

std::shared_ptr<Reducer> Reducer::create(std::vector<NamedTensor> parameters, ProcessGroup group,
                                         ReducerOptions options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), options));
  reducer->build(std::move(parameters));
  reducer->add_hooks();
  return reducer;
}

Reducer::~Reducer() {
  for (Parameter& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

void Reducer::build(std::vector<NamedTensor> parameters) {
  const at::NoGradGuard no_grad;
  std::vector<GradientSpec> specs;
  for (NamedTensor& named : parameters) {
    specs.push_back({named.tensor.nbytes(), static_cast<int>(named.tensor.scalar_type())});
    Parameter parameter;
    parameter.name = std::move(named.name);
    parameter.tensor = std::move(named.tensor);
    parameters_.push_back(std::move(parameter));
  }
  plan_ =
      plan_buckets(specs, reverse_order(specs.size()), options_.first_bucket_bytes, options_.bucket_bytes);
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan_.buckets[b];
    const at::ScalarType dtype = parameters_[planned.parameters.front()].tensor.scalar_type();
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t gradients = static_cast<int64_t>(planned.bytes) / element;
    const bool is_last = b + 1 == plan_.buckets.size();
    Bucket bucket;
    const at::Tensor memory = group_.empty_shared({gradients + (is_last ? 1 : 0)}, dtype);
    memory.zero_();  // the gaps between gradients are summed too
    bucket.flat = memory;
    if (is_last) bucket.missing = memory.narrow(0, gradients, 1);
    for (size_t i = 0; i < planned.parameters.size(); ++i) {
      Parameter& parameter = parameters_[planned.parameters[i]];
      parameter.bucket = b;
      parameter.view =
          view_like(memory, static_cast<int64_t>(planned.offsets[i]) / element, parameter.tensor);
    }
    buckets_.push_back(std::move(bucket));
  }
}

void Reducer::add_hooks() {
  const std::weak_ptr<Reducer> self = weak_from_this();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    // The accumulator is owned weakly by the parameter: without this reference it, and the hook, would go
    // away.
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<GradientHook>([self, p] {
      if (const auto reducer = self.lock()) reducer->on_gradient(p);
    }));
  }
}

void Reducer::arm(const std::vector<at::Tensor>& outputs) {
  if (parameters_.empty()) return;
  for (Parameter& parameter : parameters_) parameter.ready = false;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].pending = plan_.buckets[b].parameters.size();
    // Of a backward that ended in an exception: the ranks may still be reading and writing this memory.
    if (buckets_[b].work) buckets_[b].work->wait();
    buckets_[b].work.reset();
  }
  next_bucket_ = 0;
  end_is_queued_ = false;
  armed_ = true;
  // A rank on which no parameter gets a gradient takes part too: backward reaches an output first.
  const std::weak_ptr<Reducer> self = weak_from_this();
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([self](const at::Tensor& /*gradient*/) {
      if (const auto reducer = self.lock()) reducer->on_backward_start();
    });
  }
}

void Reducer::disarm() { armed_ = false; }

void Reducer::on_backward_start() {
  if (!armed_ || end_is_queued_) return;
  end_is_queued_ = true;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->on_backward_end(); });
}

void Reducer::on_gradient(size_t index) {
  if (!armed_) return;
  on_backward_start();
  Parameter& parameter = parameters_[index];
  if (parameter.ready) {
    throw Error("DistributedDataParallel: parameter " + parameter.name +
                " got its gradient twice after one forward; wrap all but the last backward in no_sync()");
  }
  mark_ready(parameter);
  launch_ready_buckets();
}

void Reducer::mark_ready(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.is_sparse()) {
    throw ValueError("DistributedDataParallel: parameter " + parameter.name +
                     " has a sparse gradient; make its layer produce dense ones (sparse=false)");
  }
  // After zero_grad(set_to_none) autograd leaves a tensor of its own: one copy brings it home.
  if (!gradient.is_alias_of(parameter.view)) {
    parameter.view.copy_(gradient);
    gradient = parameter.view;
  }
  parameter.ready = true;
  --buckets_[parameter.bucket].pending;
}

void Reducer::launch_ready_buckets() {
  bool launched = false;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    Bucket& bucket = buckets_[next_bucket_++];
    if (bucket.missing.defined()) {
      // The last bucket leaves when every gradient is accounted for: the right place to say what is not
      // there.
      const bool all_here =
          std::all_of(parameters_.begin(), parameters_.end(), [](const Parameter& p) { return p.ready; });
      bucket.missing.fill_(all_here ? 0 : 1);
    }
    bucket.work = group_.all_reduce_async(bucket.flat, {.op = ReduceOp::AVG});
    launched = true;
  }
  if (!launched && next_bucket_ > 0) group_.progress();
}

void Reducer::on_backward_end() {
  if (!armed_) return;
  armed_ = false;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> kept = contribute_missing();
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
  }
  if (buckets_.back().missing.item<double>() != 0) settle_missing(kept);
}

/// Lets the buckets leave that wait for gradients which will not come. Such a parameter contributes what it
/// has: its old gradient, or zeros. Returns copies of the old gradients, by parameter.
std::vector<at::Tensor> Reducer::contribute_missing() {
  std::vector<at::Tensor> kept(parameters_.size());
  if (next_bucket_ == buckets_.size()) return kept;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.ready) continue;
    const at::Tensor& old = parameter.tensor.grad();
    if (old.defined()) {
      kept[p] = old.clone();
      if (!old.is_alias_of(parameter.view)) parameter.view.copy_(old);
    } else {
      parameter.view.zero_();
    }
    --buckets_[parameter.bucket].pending;
  }
  launch_ready_buckets();
  return kept;
}

/// Some rank lacks some gradient. Every rank learns which, and either all throw or each parameter that no
/// rank used keeps its old gradient.
void Reducer::settle_missing(const std::vector<at::Tensor>& kept) {
  std::string mask(parameters_.size(), '0');
  for (size_t p = 0; p < parameters_.size(); ++p) mask[p] = parameters_[p].ready ? '1' : '0';
  const std::vector<std::string> masks = group_.all_gather_bytes(mask);
  if (!options_.find_unused_parameters) report_missing(masks);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.ready) continue;
    const bool used_somewhere =
        std::any_of(masks.begin(), masks.end(), [&](const std::string& m) { return m[p] == '1'; });
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (used_somewhere) {
      gradient = parameter.view;
    } else if (kept[p].defined()) {
      gradient.copy_(kept[p]);
    }
  }
}

void Reducer::report_missing(const std::vector<std::string>& masks) {
  constexpr size_t kMostNames = 20;
  std::string names;
  size_t count = 0;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    std::string ranks;
    for (size_t r = 0; r < masks.size(); ++r) {
      if (masks[r][p] == '0') ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    }
    if (ranks.empty()) continue;
    if (++count > kMostNames) continue;
    names += (names.empty() ? "" : "; ") + parameters_[p].name + " (rank " + ranks + ")";
  }
  if (count > kMostNames) names += "; and " + std::to_string(count - kMostNames) + " more";
  throw Error("DistributedDataParallel: no gradient for " + names +
              ": these parameters took no part in the loss. Set find_unused_parameters if that is intended");
}

}  // namespace lockstep
