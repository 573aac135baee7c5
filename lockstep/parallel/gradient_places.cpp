#include "lockstep/parallel/gradient_places.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

namespace lockstep::detail {
namespace {

/// The first element that has a bit set, or the number of them; looks at 16 MiB, which takes 2 ms.
size_t find_first_set(const at::Tensor& gradient) {
  const auto element = static_cast<size_t>(gradient.element_size());
  const auto* const bytes = static_cast<const unsigned char*>(gradient.const_data_ptr());
  constexpr size_t kBlock = 4096, kMost = size_t{16} << 20;
  const size_t count = std::min(gradient.nbytes(), kMost);
  static constexpr unsigned char kZeros[kBlock] = {};
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t length = std::min(kBlock, count - at);
    if (std::memcmp(bytes + at, kZeros, length) == 0) continue;
    const auto* const found =
        std::find_if(bytes + at, bytes + at + length, [](unsigned char b) { return b != 0; });
    return static_cast<size_t>(found - bytes) / element;
  }
  return static_cast<size_t>(gradient.numel());
}

}  // namespace

void GradientPlaces::add(const Elements& weights, size_t place) {
  places_[count_] = place;
  bits_[count_++] = weights.bits(place);
}

void GradientPlaces::note(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  // With MixedPrecision a parameter may hold low values for the moment.
  if (!gradient.defined() || !is_plain(parameter) || gradient.scalar_type() != parameter.scalar_type() ||
      are_written(parameter)) {
    return;
  }
  if (gradient.is_sparse()) {
    note_rows(parameter, gradient);
  } else if (is_plain(gradient) && gradient.strides() == parameter.strides()) {
    note_elements(parameter, gradient);
  }
}

void GradientPlaces::note_elements(const at::Tensor& parameter, const at::Tensor& gradient) {
  is_noted_ = true;
  count_ = 0;
  const Elements gradients(gradient), weights(parameter);
  for (size_t i = 0; i < gradients.probed(); ++i) {
    const size_t place = gradients.place(i);
    if (!gradients.is_zero(place)) add(weights, place);
  }
  if (count_ > 0) return;
  constexpr size_t kMostLookedAt = 4096;
  const size_t first = find_first_set(gradient);
  const size_t end = std::min(first + kMostLookedAt, gradients.size());
  for (size_t place = first; place < end && count_ < kProbedElements; ++place) {
    if (!gradients.is_zero(place)) add(weights, place);
  }
}

/// The first element that is not zero in each of some rows.
void GradientPlaces::note_rows(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (parameter.dim() != 2 || gradient.sparse_dim() != 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor indices = gradient._indices(), values = gradient._values().contiguous();
  if (values.numel() == 0) return;
  is_noted_ = true;
  count_ = 0;
  const Elements gradients(values), weights(parameter);
  const auto rows = indices.accessor<int64_t, 2>();
  const int64_t count = values.size(0), columns = values.size(1);
  const int64_t step = std::max<int64_t>(count / static_cast<int64_t>(kProbedElements), 1);
  for (int64_t n = 0; n < count && count_ < kProbedElements; n += step) {
    for (int64_t column = 0; column < columns; ++column) {
      if (gradients.is_zero(static_cast<size_t>(n * columns + column))) continue;
      add(weights, static_cast<size_t>(rows[0][n] * parameter.stride(0) + column * parameter.stride(1)));
      break;
    }
  }
}

bool GradientPlaces::are_written(const at::Tensor& parameter) const {
  if (!is_noted_ || !is_plain(parameter)) return false;
  const Elements weights(parameter);
  for (size_t i = 0; i < count_; ++i) {
    if (places_[i] >= weights.size() || weights.bits(places_[i]) != bits_[i]) return true;
  }
  return false;
}

}  // namespace lockstep::detail
