#include "lockstep/parallel/hooks/quantization_hooks.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep {
namespace {

/// [2, channels]: what Python's MinMaxObserver finds, scale and zero point, for each row.
at::Tensor scale_and_zero_point(const at::Tensor& channels) {
  auto [smallest, largest] = at::aminmax(channels, 1);
  smallest = smallest.clamp_max(0);
  largest = largest.clamp_min(0);
  const at::Tensor scale = largest.sub(smallest).div(255.0F).clamp_min(std::numeric_limits<float>::epsilon());
  return at::stack({scale, at::round(smallest / scale).neg().clamp(0, 255)});
}

/// `channel`: elements of each channel, the last one filled up with zeros; 0: one channel of all of them.
Future quantize(const char* name, const ProcessGroup& group, GradBucket& bucket, int64_t channel) {
  detail::check_real(name, bucket);
  if (bucket.buffer().numel() == 0) return bucket.buffer();  // which has no extremes
  const at::Tensor flat = bucket.buffer().to(at::kFloat);
  const int64_t missing = channel == 0 ? 0 : (channel - flat.numel() % channel) % channel;
  const at::Tensor channels =
      channel == 0 ? flat.view({1, -1}) : at::constant_pad_nd(flat, {0, missing}).view({-1, channel});
  const at::Tensor own_parameters = scale_and_zero_point(channels);
  const at::Tensor own = at::round(channels / own_parameters[0].unsqueeze(1))
                             .add_(own_parameters[1].unsqueeze(1))
                             .clamp_(0, 255)
                             .to(at::kByte);
  std::vector<at::Tensor> parameters, quantized;
  for (int r = 0; r < group.size(); ++r) {
    parameters.push_back(at::empty_like(own_parameters));
    quantized.push_back(at::empty_like(own));
  }
  const auto both =
      all_of({group.all_gather_async(parameters, own_parameters), group.all_gather_async(quantized, own)});
  return Future(both, own).then([&bucket, parameters, quantized](const at::Tensor& value) -> Future {
    at::Tensor sum = at::zeros(value.sizes(), value.options().dtype(at::kFloat));
    for (size_t r = 0; r < quantized.size(); ++r) {
      sum.add_(quantized[r]
                   .to(at::kFloat)
                   .sub_(parameters[r][1].unsqueeze(1))
                   .mul_(parameters[r][0].unsqueeze(1)));
    }
    const at::Tensor& buffer = bucket.buffer();
    return buffer.copy_(
        sum.view({-1}).narrow(0, 0, buffer.numel()).div_(static_cast<double>(quantized.size())));
  });
}

}  // namespace

Future quantization_pertensor_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return quantize("quantization_pertensor_hook", hook_group(group, bucket), bucket, 0);
}

Future quantization_perchannel_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return quantize_per_channel(group, bucket, 512);
}

Future quantize_per_channel(const std::optional<ProcessGroup>& group, GradBucket& bucket,
                            int64_t bucket_size) {
  if (bucket_size < 1) {
    throw ValueError(
        fmt::format("quantize_per_channel: bucket_size must be at least 1, not {}", bucket_size));
  }
  return quantize("quantization_perchannel_hook", hook_group(group, bucket), bucket, bucket_size);
}

}  // namespace lockstep
