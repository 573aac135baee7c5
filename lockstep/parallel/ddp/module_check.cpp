#include "lockstep/parallel/ddp/module_check.h"

#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"

namespace lockstep {
namespace {

const char* shared_elements(const at::Tensor& tensor) {
  return overlaps_itself(tensor) ? " with elements that share memory" : "";
}

}  // namespace

std::string describe_parameter(const std::string& name, const at::Tensor& parameter) {
  std::ostringstream text;
  text << "parameter " << name << " " << parameter.sizes() << " " << parameter.scalar_type()
       << (parameter.requires_grad() ? " requires_grad" : " frozen");
  // A gradient lies in its bucket as its parameter does. Dimensions of one element lie anyhow.
  if (parameter.layout() == at::kStrided && !parameter.is_contiguous()) {
    std::vector<int64_t> strides = parameter.strides().vec();
    for (size_t d = 0; d < strides.size(); ++d) {
      if (parameter.size(static_cast<int64_t>(d)) == 1) strides[d] = 1;
    }
    text << " strides " << at::IntArrayRef(strides);
  }
  text << shared_elements(parameter) << "\n";
  return text.str();
}

std::string describe_buffer(const std::string& name, const at::Tensor& buffer) {
  std::ostringstream text;
  text << "buffer " << name << " " << buffer.sizes() << " " << buffer.scalar_type() << shared_elements(buffer)
       << "\n";
  return text.str();
}

void verify_writable(const std::string& who, const std::string& what, const at::Tensor& tensor) {
  if (!overlaps_itself(tensor)) return;
  throw ValueError(
      fmt::format("{}: {} has {}, so that some of its elements are one place in memory (as after "
                  "expand()), and cannot be written; register its clone() instead",
                  who, what, describe_layout(tensor)));
}

std::pair<std::string, std::string> first_difference(const std::string& one, const std::string& other) {
  std::istringstream lines(one), other_lines(other);
  std::string line, other_line;
  while (true) {
    const bool has_line = static_cast<bool>(std::getline(lines, line));
    const bool has_other = static_cast<bool>(std::getline(other_lines, other_line));
    if (!has_line) line = "nothing more";
    if (!has_other) other_line = "nothing more";
    if (line != other_line || (!has_line && !has_other)) return {line, other_line};
  }
}

void verify_same_on_all_ranks(const ProcessGroup& group, const std::string& who, const std::string& text) {
  const std::vector<std::string> all = group.all_gather_bytes(text);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [expected, found] = first_difference(all[0], all[r]);
    throw Error(fmt::format("{}: the ranks' modules or options differ: rank 0 has {}, rank {} has {}", who,
                            expected, r, found));
  }
}

}  // namespace lockstep
