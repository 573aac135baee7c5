// One file from the network, whole and verified, or an error.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "tools/data/catalog.h"

namespace lockstep::tools {

struct DownloadOptions {
  int retries = 5;  ///< after a cut connection or a server's error, as long as nothing more arrives
  std::chrono::seconds stall_timeout{60};         ///< without a byte, and for making a connection
  std::chrono::milliseconds first_pause{1000};    ///< before the first retry; doubles with each
  std::function<void(const std::string&)> say{};  ///< what goes wrong, one line each
};

/// Brings `file` into `folder` under its name and returns the path, with a bar on standard error meanwhile. What is there already under this name is verified
/// and kept. Bytes arrive in NAME.part, from which a later call goes on. Blocking. Throws FileError, which says what to
/// put where by hand: not reached, refused by the server, another size or checksum (NAME.part is then removed).
std::filesystem::path download(const CatalogFile& file, const std::filesystem::path& folder,
                               const DownloadOptions& options);

/// The SHA-256 of a file in hexadecimal. Throws FileError.
std::string sha256_of(const std::filesystem::path& path);

}  // namespace lockstep::tools
