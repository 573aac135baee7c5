#include "lockstep/base/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::env {

std::optional<std::string> get(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool is_set(const std::string& name) { return std::getenv(name.c_str()) != nullptr; }

std::optional<int64_t> get_int(const std::string& name) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw ValueError(fmt::format("environment variable {}={} is not a whole number", name, *text));
  }
  return value;
}

std::optional<bool> get_bool(const std::string& name) {
  auto text = get(name);
  if (!text) return std::nullopt;
  std::transform(text->begin(), text->end(), text->begin(), [](unsigned char c) { return std::tolower(c); });
  if (*text == "1" || *text == "true" || *text == "yes" || *text == "on") return true;
  if (*text == "0" || *text == "false" || *text == "no" || *text == "off") return false;
  throw ValueError(
      fmt::format("environment variable {}={} is neither true nor false; use 1 or 0", name, *text));
}

void set(const std::string& name, const std::optional<std::string>& value) {
  if (value) {
    ::setenv(name.c_str(), value->c_str(), 1);
  } else {
    ::unsetenv(name.c_str());
  }
}

}  // namespace lockstep::env
