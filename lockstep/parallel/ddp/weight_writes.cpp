#include "lockstep/parallel/ddp/weight_writes.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "lockstep/parallel/tensor_probe.h"

namespace lockstep::detail {
namespace {

/// Looked at in every step: so few, and where that waits for no device.
std::array<size_t, 3> probed_places(const Elements& elements) {
  return {0, elements.size() / 2, elements.size() - 1};
}

/// These elements, and its version.
uint64_t probe_weight(const at::Tensor& weight) {
  uint64_t probe = weight._version();
  if (!is_plain(weight)) return probe;
  const Elements elements(weight);
  for (const size_t place : probed_places(elements))
    probe = (probe ^ elements.bits(place)) * 0x9E3779B97F4A7C15ULL;
  return probe;
}

/// Will an optimizer that uses the gradient write these elements?
bool does_probe_see(const at::Tensor& weight) {
  const at::Tensor& gradient = weight.grad();
  if (!gradient.defined() || !is_plain(gradient) || gradient.strides() != weight.strides()) return false;
  const Elements elements(gradient);
  const auto places = probed_places(elements);
  return std::none_of(places.begin(), places.end(), [&](size_t place) { return elements.is_zero(place); });
}

}  // namespace

void WeightWrites::note_gradients() {
  const auto& parameters = buckets_.parameters();
  places_.resize(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    if (parameter.is_trainable && !does_probe_see(parameter.tensor)) places_[p].note(parameter.tensor);
  }
}

uint64_t WeightWrites::probe() const {
  const auto& parameters = buckets_.parameters();
  uint64_t probe = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    if (!parameter.is_trainable) continue;
    probe = (probe ^ probe_weight(parameter.tensor)) * 0x9E3779B97F4A7C15ULL;
    if (p < places_.size() && places_[p].are_written(parameter.tensor)) ++probe;
  }
  return probe;
}

}  // namespace lockstep::detail
