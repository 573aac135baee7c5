#include "lockstep/trainer/output/module_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/parallel/parameters.h"

namespace lockstep {
namespace {

enum class Counted : uint8_t { all, trained };

int64_t count(const torch::nn::Module& module, Counted which) {
  int64_t elements = 0;
  for (const auto& parameter : parameters(module)) {
    if (which == Counted::all || parameter.requires_grad()) elements += parameter.numel();
  }
  return elements;
}

// 1234567 as "1.2 M", as Lightning shows it.
std::string short_number(int64_t number) {
  const auto value = static_cast<double>(number);
  if (number >= 1'000'000'000) return fmt::format("{:.1f} B", value / 1e9);
  if (number >= 1'000'000) return fmt::format("{:.1f} M", value / 1e6);
  if (number >= 1'000) return fmt::format("{:.1f} K", value / 1e3);
  return fmt::format("{}  ", number);
}

}  // namespace

std::string module_summary(const torch::nn::Module& module) {
  struct Row {
    std::string name, type, parameters;
  };
  std::vector<Row> rows = {{"name", "type", "parameters"}};
  for (const auto& child : module.named_children()) {
    std::string type = child.value()->name();
    type = type.substr(type.rfind(':') + 1);
    if (type.ends_with("Impl")) type.resize(type.size() - 4);
    rows.push_back({child.key(), type, short_number(count(*child.value(), Counted::all))});
  }
  size_t name_width = 0, type_width = 0;
  for (const auto& row : rows) {
    name_width = std::max(name_width, row.name.size());
    type_width = std::max(type_width, row.type.size());
  }
  std::string text;
  for (const auto& row : rows) {
    text +=
        fmt::format("{:<{}}  {:<{}}  {:>10}\n", row.name, name_width, row.type, type_width, row.parameters);
  }
  size_t bytes = 0;
  for (const auto& parameter : parameters(module)) bytes += parameter.nbytes();
  const int64_t all = count(module, Counted::all), trained = count(module, Counted::trained);
  return text + fmt::format("{} parameters, {} trained, {} not, {:.1f} MB", all, trained, all - trained,
                            static_cast<double>(bytes) / 1e6);
}

}  // namespace lockstep
