// Logging to standard error, one line a message, level by LOCKSTEP_LOG_LEVEL (debug, info, warning, error).
#pragma once

#include <string_view>

namespace lockstep::log {

enum class Level { debug, info, warning, error };

/// Messages below `level` are dropped. Default: LOCKSTEP_LOG_LEVEL, else warning. Thread-safe.
void set_level(Level level);

/// Writes "[lockstep] <level>: <message>" to standard error. Thread-safe; lines do not interleave.
void write(Level level, std::string_view message);

/// From now on `writer` gets each whole line, without its end, in place of standard error: what draws a live
/// line on the terminal puts it above that. Null: standard error again. Thread-safe; `writer` must be so too.
using LineWriter = void (*)(std::string_view line);
void set_line_writer(LineWriter writer);

inline void debug(std::string_view message) { write(Level::debug, message); }
inline void info(std::string_view message) { write(Level::info, message); }
inline void warning(std::string_view message) { write(Level::warning, message); }
inline void error(std::string_view message) { write(Level::error, message); }

}  // namespace lockstep::log
