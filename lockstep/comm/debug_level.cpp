#include "lockstep/comm/debug_level.h"

#include <algorithm>
#include <cctype>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr const char* kVariable = "TORCH_DISTRIBUTED_DEBUG";

DebugLevel read_debug_level() {
  const std::string given = env::get(kVariable).value_or("OFF");
  std::string name = given;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  if (name == "OFF") return DebugLevel::OFF;
  if (name != "INFO" && name != "DETAIL") {
    throw ValueError(fmt::format("{}={}: it must be OFF, INFO or DETAIL", kVariable, given));
  }
  // Who asks for messages is to see them.
  if (!env::get(env::kLogLevel)) log::set_level(log::Level::info);
  return name == "INFO" ? DebugLevel::INFO : DebugLevel::DETAIL;
}

}  // namespace

DebugLevel debug_level() {
  static const DebugLevel level = read_debug_level();
  return level;
}

}  // namespace lockstep
