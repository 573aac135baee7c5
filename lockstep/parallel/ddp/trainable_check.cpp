#include "lockstep/parallel/ddp/trainable_check.h"

#include <algorithm>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/module_check.h"

namespace lockstep {
namespace {

using Parameter = GradientBuckets::Parameter;

std::string describe_kind(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

bool has_changed(const Parameter& parameter) {
  return parameter.tensor.requires_grad() != parameter.is_trainable;
}

}  // namespace

std::string describe_changed_kinds(const GradientBuckets& buckets) {
  std::string text;
  for (const Parameter& parameter : buckets.parameters()) {
    if (!parameter.view.defined()) continue;
    const at::Tensor &now = parameter.tensor, &then = parameter.kind;
    if (now.scalar_type() == then.scalar_type() && now.sizes() == then.sizes()) continue;
    text += fmt::format("{}{} is {} now but was {}", text.empty() ? "parameter " : ", parameter ",
                        parameter.name, describe_kind(now), describe_kind(then));
    now.mutable_grad().reset();
  }
  return text;
}

bool has_changed_trainable(const GradientBuckets& buckets) {
  return std::any_of(buckets.parameters().begin(), buckets.parameters().end(), has_changed);
}

void verify_trainable(const ProcessGroup& group, const GradientBuckets& buckets) {
  std::string text, changed;
  for (const Parameter& parameter : buckets.parameters()) {
    text += describe_parameter(parameter.name, parameter.tensor);
    if (has_changed(parameter)) changed += (changed.empty() ? "" : ", ") + parameter.name;
  }
  try {
    verify_same_on_all_ranks(group, "DistributedDataParallel", text);
  } catch (const MismatchError& error) {
    // The others are elsewhere: for them nothing has changed.
    throw MismatchError(
        fmt::format("DistributedDataParallel: requires_grad of {} changed on rank {} and not on all ranks "
                    "before the same forward, as it must: {}",
                    changed, group.rank(), error.what()));
  }
}

}  // namespace lockstep
