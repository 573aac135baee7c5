#include "lockstep/parallel/ddp/bucket_reduction.h"

#include <c10/core/GradMode.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/timeline/totals.h"

namespace lockstep {

namespace {

/// What the hook throws counts unless the pass has been cut short here, whose first error is the one to tell. A broken
/// group always counts.
void run_hook(const Pass& pass, const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError&) {
    throw;
  } catch (const StepFailedError&) {
    throw;
  } catch (...) {
    if (!pass.has_been_cut()) throw;
  }
}

}  // namespace

AllReduceAlgorithm tree_algorithm(const ProcessGroup& group) {
  return group.impl().traits().fixed_tree ? AllReduceAlgorithm::DIRECT : AllReduceAlgorithm::TREE;
}

void BucketReduction::begin_pass(const GradientBuckets& buckets) {
  flights_.clear();
  flights_.resize(buckets.buckets().size());
  left_ = 0;
}

void BucketReduction::start_ready(GradientBuckets& buckets, Pass& pass) {
  bool started = false;
  const auto is_due = [&](const GradientBuckets::Bucket& bucket) {
    return bucket.pending == 0 && (pass.has_ended || !bucket.agreement.defined());
  };
  while (left_ < buckets.buckets().size() && is_due(buckets.buckets()[left_])) {
    if (left_ == 0) pass.first_bucket = pass.moment();
    const timeline::BucketScope scope(left_);
    buckets.seal(left_);
    const at::Tensor& flat = buckets.buckets()[left_].flat;
    if (hook_) {
      run_hook(pass, [&] { start_hook(buckets, left_, pass.divisor); });
    } else if (flat.numel() > 0) {
      start_average(flat, flights_[left_], pass);
    }
    ++left_;
    started = true;
  }
  if (!started && left_ > 0) group_.progress();
}

/// Rounded once, whatever the divisor: in half precision a quotient of a sum would be rounded twice.
void BucketReduction::start_average(const at::Tensor& flat, Flight& flight, const Pass& pass) {
  const bool by_size = pass.divisor == 0 || pass.divisor == group_.size();
  const at::ScalarType dtype = flat.scalar_type();
  if (!by_size && (dtype == at::kBFloat16 || dtype == at::kHalf)) flight.wide = flat.to(at::kFloat);
  flight.work = group_.all_reduce_async(
      flight.wide.defined() ? flight.wide : flat,
      {.op = by_size ? ReduceOp::AVG : ReduceOp::SUM, .algorithm = algorithm_, .wire_dtype = wire_dtype_});
}

void BucketReduction::start_hook(const GradientBuckets& buckets, size_t index, int divisor) {
  const BucketPlan::Bucket& planned = buckets.plan().buckets[index];
  if (planned.parameters.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& flat = buckets.buckets()[index].flat;
  const auto element = static_cast<int64_t>(flat.element_size());
  std::vector<int64_t> offsets;
  std::vector<at::Tensor> parameters;
  std::vector<std::string_view> names;
  for (size_t i = 0; i < planned.parameters.size(); ++i) {
    const GradientBuckets::Parameter& parameter = buckets.parameters()[planned.parameters[i]];
    offsets.push_back(static_cast<int64_t>(planned.offsets[i]) / element);
    parameters.push_back(parameter.tensor);
    names.push_back(parameter.name);
  }
  Flight& flight = flights_[index];
  flight.grad_bucket =
      std::make_unique<GradBucket>(group_, index, buckets.buckets().size(),
                                   flat.narrow(0, 0, static_cast<int64_t>(planned.bytes) / element),
                                   std::move(offsets), std::move(parameters), std::move(names), divisor);
  flight.future = std::make_unique<Future>(hook_(*flight.grad_bucket));
}

void BucketReduction::wait(const GradientBuckets& buckets, const Pass& pass) {
  const timeline::Counted counted(timeline::Kind::wait);
  if (hook_) {
    wait_for_hooks(buckets, pass);
  } else {
    wait_for_averages(buckets, pass);
  }
}

void BucketReduction::wait_for_averages(const GradientBuckets& buckets, const Pass& pass) {
  const bool divides = pass.divisor != 0 && pass.divisor != group_.size();
  for (size_t b = 0; b < buckets.buckets().size(); ++b) {
    const at::Tensor& flat = buckets.buckets()[b].flat;
    Flight& flight = flights_[b];
    if (!flight.work) continue;  // nothing in it, or abandoned
    flight.work->wait();
    flight.work.reset();
    if (!divides) continue;
    if (flight.wide.defined()) {
      flat.copy_(std::exchange(flight.wide, {}).div_(pass.divisor));
    } else {
      flat.div_(pass.divisor);
    }
  }
}

/// Stage by stage, bucket by bucket: the operations of one bucket's hook go on while the next one computes,
/// and all ranks start them in the same order.
void BucketReduction::wait_for_hooks(const GradientBuckets& buckets, const Pass& pass) {
  bool any = true;
  while (any) {
    any = false;
    for (Flight& flight : flights_) {
      if (!flight.future || flight.future_is_complete) continue;
      run_hook(pass, [&] {
        flight.future_is_complete = true;  // if it throws, nothing follows
        flight.future_is_complete = flight.future->advance();
      });
      any = any || !flight.future_is_complete;
    }
  }
  for (size_t b = 0; b < flights_.size(); ++b) {
    Flight& flight = flights_[b];
    if (flight.future && !pass.has_been_cut()) take_result(buckets.buckets()[b], b, flight.future->wait());
    flight.future.reset();
    flight.grad_bucket.reset();
  }
}

void BucketReduction::take_result(const GradientBuckets::Bucket& bucket, size_t number,
                                  const at::Tensor& value) {
  const int64_t count = bucket.flat.numel();
  if (!value.defined() || value.numel() != count) {
    throw Error(
        fmt::format("DistributedDataParallel: the communication hook's result for bucket {} has {} "
                    "elements; the bucket's gradients have {}",
                    number, value.defined() ? value.numel() : 0, count));
  }
  if (value.const_data_ptr() != bucket.flat.const_data_ptr()) bucket.flat.copy_(value.reshape({-1}));
}

void BucketReduction::abandon() {
  const auto quietly = [](const auto& wait) {
    try {
      wait();
    } catch (...) {  // the first error is the one to tell
    }
  };
  for (Flight& flight : flights_) {
    if (flight.future) quietly([&] { flight.future->abandon(); });
    if (flight.work) quietly([&] { flight.work->wait(); });
    flight.future.reset();
    flight.work.reset();
  }
}

}  // namespace lockstep
