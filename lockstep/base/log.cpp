// The only source that sees spdlog; it must not see a LibTorch header (the two carry different fmt versions).
#include "lockstep/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"

namespace lockstep::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

Level level_from_environment() {
  const auto text = env::get(env::kLogLevel);
  if (!text || *text == "warning") return Level::warning;
  if (*text == "debug") return Level::debug;
  if (*text == "info") return Level::info;
  if (*text == "error") return Level::error;
  throw ValueError(fmt::format(
      "environment variable LOCKSTEP_LOG_LEVEL={} is unknown; use debug, info, warning or error", *text));
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[lockstep] %l: %v");
    made->set_level(to_spdlog(level_from_environment()));
    return made;
  }();
  return *instance;
}

std::atomic<LineWriter> line_writer{nullptr};

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void set_line_writer(LineWriter writer) { line_writer = writer; }

void write(Level level, std::string_view message) {
  const auto spdlog_level = to_spdlog(level);
  const LineWriter writer = line_writer;
  if (writer == nullptr) return logger().log(spdlog_level, "{}", message);
  if (!logger().should_log(spdlog_level)) return;
  const auto name = spdlog::level::to_string_view(spdlog_level);
  writer(fmt::format("[lockstep] {}: {}", std::string(name.data(), name.size()), message));
}

}  // namespace lockstep::log
