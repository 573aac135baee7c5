// Memory that may be written in certain moments only: who does it in between is told and ended.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::detail {

/// Whole pages that are read-only in this process but between unprotect() and protect(), which may be nested;
/// other processes that map them are not affected. A write in between ends the process by SIGSEGV, after one
/// line on standard error that names `what` was hit. Not thread-safe.
class WriteProtection {
 public:
  struct Named {
    const void* begin;
    size_t bytes;
    std::string what;  ///< e.g. "rank 1: parameter fc.weight"
  };

  WriteProtection() = default;
  WriteProtection(const WriteProtection&) = delete;
  ~WriteProtection();

  /// Adds [begin, begin + bytes), from the start of a page to the end of one, with what lies in it. Throws
  /// Error when too many ranges are protected in this process.
  /// To be called between unprotect() and protect().
  void add(void* begin, size_t bytes, std::vector<Named> contents);
  void unprotect();
  void protect();

 private:
  struct Range {
    std::byte* begin;
    size_t bytes;
    std::vector<Named> contents;
  };
  void set(int rights);

  int writers_ = 0;
  std::vector<std::unique_ptr<Range>> ranges_;  // the signal handler reads them
};

}  // namespace lockstep::detail
