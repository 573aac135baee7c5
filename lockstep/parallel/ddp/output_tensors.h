// The tensors in whatever a module's forward returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {
namespace detail {

template <class T>
concept HasTensors = requires(const T& value) {
  { value.tensors() } -> std::convertible_to<std::vector<at::Tensor>>;
};
template <class T>
concept HasCollectTensors = requires(const T& value, std::vector<at::Tensor>& into) {
  collect_tensors(value, into);  // found beside T
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept PointerLike = requires(const T& value) {
  static_cast<bool>(value);
  *value;
};
template <class T>
concept KeyValue = requires(const T& value) {
  value.key();
  value.value();
};
template <class T>
concept HoldsNone = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::nullopt_t> ||
    std::convertible_to<T, std::string_view> || std::same_as<T, std::monostate>;
template <class T>
inline constexpr bool kIsVariant = false;
template <class... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;

/// Appends the tensors of `value` to `into`.
template <class T>
void append_tensors(const T& value, std::vector<at::Tensor>& into) {
  if constexpr (std::derived_from<T, at::Tensor>) {
    into.push_back(value);
  } else if constexpr (HasTensors<T>) {
    for (const at::Tensor& tensor : value.tensors()) into.push_back(tensor);
  } else if constexpr (HasCollectTensors<T>) {
    collect_tensors(value, into);
  } else if constexpr (HoldsNone<T>) {
    return;
  } else if constexpr (std::ranges::input_range<const T>) {
    for (const auto& element : value) append_tensors(element, into);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... element) { (append_tensors(element, into), ...); }, value);
  } else if constexpr (kIsVariant<T>) {
    std::visit([&](const auto& element) { append_tensors(element, into); }, value);
  } else if constexpr (KeyValue<T>) {
    append_tensors(value.value(), into);
  } else if constexpr (PointerLike<T>) {
    if (value) append_tensors(*value, into);
  } else {
    static_assert(HasTensors<T>,
                  "DistributedDataParallel must find the tensors in what forward returns: give the struct a "
                  "member `std::vector<at::Tensor> tensors() const`, or declare beside it "
                  "`void collect_tensors(const T&, std::vector<at::Tensor>& into)`");
  }
}

}  // namespace detail
}  // namespace lockstep
