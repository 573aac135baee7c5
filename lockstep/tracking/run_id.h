// What tells one run from all others.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

/// Eight random lower-case letters and digits, as Weights & Biases makes them.
std::string make_run_id();

/// Whether `id` has only letters, digits, '-' and '_', and 1 to 128 of them.
bool is_run_id(std::string_view id);
/// Throws ValueError unless it is_run_id().
void check_run_id(const std::string& id);

/// The id that `file` holds; empty where there is no such file. Throws FileError and ValueError.
std::string read_run_id(const std::filesystem::path& file);
/// Writes it, for the next start of the same run. Throws FileError.
void write_run_id(const std::filesystem::path& file, const std::string& id);

}  // namespace lockstep
