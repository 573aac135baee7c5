// The one reader of environment variables. Nothing else in Lockstep calls getenv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::env {

/// Value of `name`, or nullopt when it is unset or empty.
std::optional<std::string> get(const std::string& name);

/// Whether `name` is set, though to nothing.
bool is_set(const std::string& name);

/// Whole number in `name`, or nullopt when unset. Throws ValueError naming the variable when it is no number.
std::optional<int64_t> get_int(const std::string& name);

/// True for 1, true, yes, on; false for 0, false, no, off (any case); nullopt when unset; ValueError
/// otherwise.
std::optional<bool> get_bool(const std::string& name);

/// Sets or, with nullopt, removes `name` in this process. Not thread-safe, as setenv is not.
void set(const std::string& name, const std::optional<std::string>& value);

}  // namespace lockstep::env
