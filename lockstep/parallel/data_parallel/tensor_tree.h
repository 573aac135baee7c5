// The tensors inside a value: tuples, maps, structs of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdlib>
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
concept WithoutTensors = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::nullopt_t> ||
    std::same_as<T, std::monostate> || std::convertible_to<T, std::string_view>;
template <class T>
concept WithFields = requires(T& value) {
  std::tuple_size<decltype(value.fields())>::value;
};
/// As lockstep::Batch: a range of names and tensors, which set() changes.
template <class T>
concept SetByName = requires(T& value, const std::string& name, at::Tensor tensor) {
  value.set(name, tensor);
  value.begin();
};
template <class T>
concept MapLike = requires {
  typename T::key_type;
  typename T::mapped_type;
};
template <class T>
concept SizedTuple = requires {
  std::tuple_size<T>::value;
};
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsVariantType = false;
template <class... T>
inline constexpr bool kIsVariantType<std::variant<T...>> = true;

/// Becomes any member of an Owner; never called.
template <class Owner>
struct AnyMember {
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Owner>) operator T()
      const {  // NOLINT(google-explicit-constructor)
    std::abort();
  }
};
template <class T, size_t... I>
constexpr bool takes_members(std::index_sequence<I...> /*unused*/) {
  return requires { T{(static_cast<void>(I), AnyMember<T>())...}; };
}
inline constexpr size_t kMostMembers = 12;
/// How many members a struct without constructors has, at most kMostMembers.
template <class T, size_t N = kMostMembers>
constexpr size_t count_members() {
  if constexpr (N == 0 || takes_members<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return count_members<T, N - 1>();
  }
}

/// The members of a struct without constructors, as references.
template <class T>
auto tie_members(T& value) {
  constexpr size_t kCount = count_members<T>();
  if constexpr (kCount == 0) {
    return std::tuple<>();
  } else if constexpr (kCount == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (kCount == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kCount == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kCount == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  }
}

template <class Key>
std::string key_in_words(const Key& key) {
  if constexpr (std::convertible_to<Key, std::string_view>) {
    return "[\"" + std::string(std::string_view(key)) + "\"]";
  } else if constexpr (std::is_arithmetic_v<Key>) {
    return "[" + std::to_string(key) + "]";
  } else {
    return "[...]";
  }
}

/// Calls `visit(at::Tensor&, path)` for each tensor inside `value`, defined or not, in an order that depends on
/// the value's shape alone. `path` says where it is: "argument 1[\"ids\"]".
template <class T, class Visit>
void each_tensor(T& value, const std::string& path, const Visit& visit) {
  if constexpr (std::derived_from<T, at::Tensor>) {
    visit(value, path);
  } else if constexpr (WithFields<T>) {
    auto members = value.fields();
    each_tensor(members, path, visit);
  } else if constexpr (WithoutTensors<T>) {
    return;
  } else if constexpr (SetByName<T>) {
    const T names = value;
    for (const auto& [name, old] : names) {
      at::Tensor tensor = old;
      visit(tensor, path + key_in_words(name));
      value.set(name, std::move(tensor));
    }
  } else if constexpr (MapLike<T>) {
    static_assert(
        requires(T & map) { typename T::key_compare; },
        "a std::map has an order that all replicas share; a map without one does not");
    for (auto& [key, element] : value) each_tensor(element, path + key_in_words(key), visit);
  } else if constexpr (std::ranges::range<T> && !SizedTuple<T>) {
    static_assert(!std::ranges::view<T>, "a view owns no tensors: pass a std::vector");
    size_t place = 0;
    for (auto& element : value) each_tensor(element, path + "[" + std::to_string(place++) + "]", visit);
  } else if constexpr (SizedTuple<T>) {
    size_t place = 0;
    std::apply(
        [&](auto&... element) {
          (each_tensor(element, path + "<" + std::to_string(place++) + ">", visit), ...);
        },
        value);
  } else if constexpr (kIsVariantType<T>) {
    std::visit([&](auto& element) { each_tensor(element, path, visit); }, value);
  } else if constexpr (kIsOptional<T>) {
    if (value) each_tensor(*value, path, visit);
  } else if constexpr (std::is_aggregate_v<T> && (std::is_empty_v<T> || count_members<T>() > 0)) {
    auto members = tie_members(value);
    size_t place = 0;
    std::apply(
        [&](auto&... member) {
          (each_tensor(member, path + ".<" + std::to_string(place++) + ">", visit), ...);
        },
        members);
  } else {
    static_assert(WithFields<T>,
                  "the tensors of this type must be found: make it a struct without constructors (at most 12 "
                  "members), or give it a member `auto fields() { return std::tie(first, second); }`");
  }
}

/// The tensors inside `value`, and where they are.
struct FoundTensors {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> paths;
};
template <class T>
FoundTensors find_tensors(T& value, const std::string& path) {
  FoundTensors found;
  each_tensor(value, path, [&](const at::Tensor& tensor, const std::string& where) {
    found.tensors.push_back(tensor);
    found.paths.push_back(where);
  });
  return found;
}
/// Puts tensors in the places of those that find_tensors() found.
template <class T>
void replace_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  size_t place = 0;
  each_tensor(value, "",
              [&](at::Tensor& tensor, const std::string& /*where*/) { tensor = tensors[place++]; });
}

}  // namespace detail
}  // namespace lockstep
