#include "tests/ranks/check.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/nonzero.h>

#include <exception>
#include <stdexcept>

namespace lockstep::testing {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()),
                     ::testing::PrintToString(tensor.sizes().vec()));
}

std::string print_element(const at::Tensor& tensor, const std::vector<int64_t>& index) {
  at::Tensor element = tensor;
  for (const int64_t i : index) element = element[i];
  if (element.is_complex() || !element.is_floating_point()) return ::testing::PrintToString(element.item());
  return fmt::format("{}", element.item<double>());
}

}  // namespace

void check(const Verdict& verdict, const char* file, int line, const char* condition) {
  if (verdict.holds) return;
  throw std::runtime_error(fmt::format("{}:{}: {}{}{}", file, line, condition,
                                       verdict.values.empty() ? "" : ": ", verdict.values));
}

Verdict compare(const at::Tensor& found, const at::Tensor& expected, double rtol, double atol) {
  const bool is_exact = rtol == 0 && atol == 0;
  if (!found.defined() || !expected.defined()) {
    return {false, fmt::format("{} is undefined", found.defined() ? "what is expected" : "the tensor")};
  }
  if (found.sizes() != expected.sizes() || (is_exact && found.dtype() != expected.dtype())) {
    return {false, fmt::format("{}, expected {}", describe(found), describe(expected))};
  }
  const auto comparable = [&](const at::Tensor& tensor) {
    if (is_exact &&
        c10::isBarebonesUnsignedType(tensor.scalar_type())) {  // LibTorch compares no such elements
      return tensor.detach().to(at::kLong);
    }
    return is_exact ? tensor.detach()
                    : tensor.detach().to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
  };
  const at::Tensor a = comparable(found), b = comparable(expected);
  // Nearly always; at::equal() looks at no element of a tensor that it is given twice, which may be NaN.
  if (is_exact && a.const_data_ptr() != b.const_data_ptr() && at::equal(a, b)) return {true};
  const at::Tensor differs = is_exact ? a.ne(b) : at::isclose(a, b, rtol, atol).logical_not();
  const at::Tensor places = at::nonzero(differs);
  if (places.size(0) == 0) return {true};
  const at::Tensor first = places[0].contiguous();
  const std::vector<int64_t> index(first.const_data_ptr<int64_t>(),
                                   first.const_data_ptr<int64_t>() + first.numel());
  return {false, fmt::format("{} differs in {} of {} elements, first at {}: {}, expected {}", describe(found),
                             places.size(0), found.numel(), ::testing::PrintToString(index),
                             print_element(a, index), print_element(b, index))};
}

Verdict compare_each(const at::Tensor& found, const at::Scalar& value) {
  if (!found.defined()) return {false, "the tensor is undefined"};
  const at::Tensor plain = found.detach().resolve_conj().resolve_neg();
  return compare(plain, at::full_like(plain, value));
}

ScopedCase::ScopedCase(std::string name)
    : exceptions_(std::uncaught_exceptions()), trace_("", 0, "case " + name), name_(std::move(name)) {}

ScopedCase::~ScopedCase() {
  if (std::uncaught_exceptions() > exceptions_) ADD_FAILURE() << "in the case " << name_;
}

}  // namespace lockstep::testing
