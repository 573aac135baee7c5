// The log that holds the records of a Weights & Biases run: LevelDB's, with zlib's checksum and a header.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// The bytes at the beginning of such a file.
std::string wandb_log_header();

/// Appends `record` to `out`, cut into pieces that end at blocks of 32 KiB. `offset`: where the first byte will
/// lie in the file, the header included.
void append_wandb_record(std::string& out, uint64_t offset, std::string_view record);

/// Calls `use` with every record of `file`, up to the first that is unfinished or damaged. False where the
/// header is not that of such a file.
bool read_wandb_records(std::string_view file, const std::function<void(std::string_view)>& use);

}  // namespace lockstep
