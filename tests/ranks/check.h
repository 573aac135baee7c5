// Checks that can stand in any function and thread: what fails throws, with the values, the case (SCOPED_CASE) and,
// of tensors, the first element that differs.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

namespace lockstep::testing {

/// What a check found, for the thread that fails.
struct Verdict {
  bool holds;
  std::string values{};  ///< empty: the condition's text says all
  explicit operator bool() const { return holds; }
};

/// Throws std::runtime_error if `verdict` does not hold.
void check(const Verdict& verdict, const char* file, int line, const char* condition);

/// Compares shape, dtype and elements. rtol and atol 0: bit for bit but for the sign of 0; NaN differs from all.
Verdict compare(const at::Tensor& found, const at::Tensor& expected, double rtol = 0, double atol = 0);

/// Compares each element with `value`.
Verdict compare_each(const at::Tensor& found, const at::Scalar& value);

/// Names what is tested in this scope, such as a dtype and a shape: any failure or exception inside shows it.
class ScopedCase {
 public:
  /// Joins the cases around it.
  explicit ScopedCase(std::string name);
  ScopedCase(const ScopedCase&) = delete;
  /// Adds the name to GoogleTest's failures if an exception leaves the scope.
  ~ScopedCase();

 private:
  const int exceptions_;
  ::testing::ScopedTrace trace_;
  std::string name_;
};

namespace checks {

template <class T>
std::string print_value(const T& value) {
  std::string text = ::testing::PrintToString(value);
  if (text.size() > 300) text = text.substr(0, 300) + " ...";
  return text;
}

template <class T>
concept number = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>;

/// The left side of a comparison, or the whole of a condition.
template <class L>
struct Operand {
  const L& value;

  explicit operator bool() const { return static_cast<bool>(value); }
  template <class R>
  Verdict operator==(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_equal(value, right), right, "!=");
    } else {
      return verdict(value == right, right, "!=");
    }
  }
  template <class R>
  Verdict operator!=(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_not_equal(value, right), right, "==");
    } else {
      return verdict(value != right, right, "==");
    }
  }
  template <class R>
  Verdict operator<(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_less(value, right), right, ">=");
    } else {
      return verdict(value < right, right, ">=");
    }
  }
  template <class R>
  Verdict operator>(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_greater(value, right), right, "<=");
    } else {
      return verdict(value > right, right, "<=");
    }
  }
  template <class R>
  Verdict operator<=(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_less_equal(value, right), right, ">");
    } else {
      return verdict(value <= right, right, ">");
    }
  }
  template <class R>
  Verdict operator>=(const R& right) const {
    if constexpr (number<L> && number<R>) {
      return verdict(std::cmp_greater_equal(value, right), right, "<");
    } else {
      return verdict(value >= right, right, "<");
    }
  }

 private:
  template <class R>
  Verdict verdict(bool holds, const R& right, const char* relation) const {
    if (holds) return {true};
    return {false, fmt::format("{} {} {}", print_value(value), relation, print_value(right))};
  }
};

/// Takes the left side of a condition, since it binds more tightly than a comparison: `Split() << a == b`.
struct Split {
  template <class L>
  Operand<L> operator<<(const L& left) const {
    return {left};
  }
};

inline Verdict judge(const Verdict& verdict) { return verdict; }
template <class T>
Verdict judge(const T& condition) {
  return {static_cast<bool>(condition)};
}

}  // namespace checks

/// Throws if the condition is false. A comparison prints both sides.
#define CHECK_TRUE(...)                                                                              \
  do {                                                                                               \
    _Pragma("GCC diagnostic push")                                                                   \
        _Pragma("GCC diagnostic ignored \"-Wparentheses\"")::lockstep::testing::check(               \
            ::lockstep::testing::checks::judge(::lockstep::testing::checks::Split() << __VA_ARGS__), \
            __FILE__, __LINE__, #__VA_ARGS__);                                                       \
    _Pragma("GCC diagnostic pop")                                                                    \
  } while (false)

/// Throws unless two tensors have one shape, one dtype and equal elements.
#define CHECK_EQUAL(found, expected)                                                            \
  ::lockstep::testing::check(::lockstep::testing::compare(found, expected), __FILE__, __LINE__, \
                             #found " equals " #expected)

/// Throws unless each element is `value`.
#define CHECK_EACH(found, value)                                                                  \
  ::lockstep::testing::check(::lockstep::testing::compare_each(found, value), __FILE__, __LINE__, \
                             "each element of " #found " is " #value)

/// Throws unless the elements are close as at::allclose has it; dtypes may differ.
#define CHECK_CLOSE(found, expected, rtol, atol)                                                            \
  ::lockstep::testing::check(::lockstep::testing::compare(found, expected, rtol, atol), __FILE__, __LINE__, \
                             #found " is close to " #expected)

#define LOCKSTEP_JOIN_WORDS(a, b) a##b
#define LOCKSTEP_JOIN(a, b) LOCKSTEP_JOIN_WORDS(a, b)
/// SCOPED_CASE("{} {}", dtype, sizes): see ScopedCase.
#define SCOPED_CASE(...) \
  const ::lockstep::testing::ScopedCase LOCKSTEP_JOIN(scoped_case_, __LINE__)(fmt::format(__VA_ARGS__))

}  // namespace lockstep::testing
