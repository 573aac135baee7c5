// The error file that launchers read: what a failed rank died of, in torchelastic's format.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace lockstep {

/// From now on an exception that nobody catches is written to the file that TORCHELASTIC_ERROR_FILE names
/// (lockrun and torchrun set it, and show what is in it) before the program ends as it would have. What
/// run_main catches is written without this call. Does nothing where the variable is unset. Not thread-safe:
/// call it once, at the start.
void record_errors();

/// Writes `error` to that file now. Where there is none, or it cannot be written, nothing happens.
/// `reported_by`: the rank that has printed the error for the whole job; lockrun then adds nothing to that
/// line.
void record_error(const std::exception& error, std::optional<int> reported_by = std::nullopt) noexcept;

/// The text of an error file: {"message": {"message": "Type: text", "extraInfo": {...}}}. It names flags as the
/// user gave them. `timestamp`: seconds since 1970.
std::string error_file_text(const std::exception& error, long timestamp,
                            std::optional<int> reported_by = std::nullopt);

}  // namespace lockstep
