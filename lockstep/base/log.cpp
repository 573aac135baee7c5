#include "lockstep/base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::log {
namespace {

Level level_from_environment() {
  const auto text = env::get("LOCKSTEP_LOG_LEVEL");
  if (!text || *text == "warning") return Level::warning;
  if (*text == "debug") return Level::debug;
  if (*text == "info") return Level::info;
  if (*text == "error") return Level::error;
  throw ValueError("environment variable LOCKSTEP_LOG_LEVEL=" + *text +
                   " is unknown; use debug, info, warning or error");
}

std::atomic<Level>& lowest_level() {
  static std::atomic<Level> level = level_from_environment();
  return level;
}

const char* name_of(Level level) {
  switch (level) {
    case Level::debug:
      return "debug";
    case Level::info:
      return "info";
    case Level::warning:
      return "warning";
    case Level::error:
      return "error";
  }
  return "?";
}

}  // namespace

void set_level(Level level) { lowest_level().store(level, std::memory_order_relaxed); }

void write(Level level, std::string_view message) {
  if (level < lowest_level().load(std::memory_order_relaxed)) return;
  std::string line = std::string("[lockstep] ") + name_of(level) + ": ";
  line.append(message).append("\n");
  // In one call: the stream is locked for so long, and it has no buffer that could hold a part back.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace lockstep::log
