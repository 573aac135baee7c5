// A number that a failed step leaves as it was.
#pragma once

#include <string>
#include <utility>

#include "lockstep/comm/step_members.h"

namespace lockstep::detail {

/// Behaves like a T, and takes part in steps (lockstep/step/step.h): after one that has failed it is what it was before.
/// A copy takes part by itself. One thread at a time.
template <class T>
class StepValue final : public StepMember {
 public:
  explicit StepValue(T value) : value_(value), before_(std::move(value)) {}
  StepValue(const StepValue& other) : StepMember(), value_(other.value_), before_(other.before_) {}
  StepValue& operator=(const StepValue& other) { return *this = other.value_; }
  StepValue& operator=(T value) {
    value_ = std::move(value);
    return *this;
  }
  operator const T&() const { return value_; }  // NOLINT: implicit by design
  StepValue& operator++() {
    ++value_;
    return *this;
  }
  T operator++(int) { return value_++; }

  void begin_step() override { before_ = value_; }
  void fail_step() override { value_ = before_; }
  std::string heal_problem() const override {
    return "averages of weights after some steps (model averaging, local SGD)";
  }

 private:
  T value_, before_;
};

}  // namespace lockstep::detail
