// The page of one run or several: HTML with everything in it. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/report/run_directory.h"

namespace lockstep::tools {

struct PageOptions {
  std::string title{};   ///< empty: the runs' names
  double generated = 0;  ///< seconds since 1970
  size_t points = 1500;  ///< of a curve at most; fewer where the page would be too large
  size_t most_bytes = 5'000'000;
};

/// Refers to nothing outside. No two runs have the same name: those that would are called by their directories.
/// Throws ValueError where the page would be too large however few points its curves have.
std::string report_page(std::vector<RunDirectory> runs, const PageOptions& options);

}  // namespace lockstep::tools
