// Brings the tensors among a call's arguments to a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep::detail {

template <class T>
inline constexpr bool kIsTensor = std::same_as<std::remove_cvref_t<T>, at::Tensor>;

template <class T>
auto placed_on(const at::Device& device, T&& argument) -> std::conditional_t<kIsTensor<T>, at::Tensor, T&&> {
  if constexpr (kIsTensor<T>) {
    return argument.defined() ? argument.to(device) : argument;
  } else {
    return std::forward<T>(argument);
  }
}

/// Calls `call` with `args`, of which tensors (not those inside other types) are copied to `device` first
/// where there is one and they are not on it.
template <class Call, class... Args>
decltype(auto) with_tensors_on(const std::optional<at::Device>& device, const Call& call, Args&&... args) {
  if (!device) return call(std::forward<Args>(args)...);
  std::tuple<std::conditional_t<kIsTensor<Args>, at::Tensor, Args&&>...> placed{
      placed_on(*device, std::forward<Args>(args))...};
  return std::apply(
      [&](auto&... argument) -> decltype(auto) { return call(static_cast<Args&&>(argument)...); }, placed);
}

}  // namespace lockstep::detail
