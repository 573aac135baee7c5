// The overlap picture: what each rank computes, and beside it the gradient buckets that are being reduced.
#pragma once

#include <optional>
#include <string>

#include "tools/timeline/trace.h"

namespace lockstep::tools {

/// Microseconds since the file's beginning.
struct Window {
  double from = 0, to = 0;
};

/// Whole training steps: the last `steps` of the rank that has most, without the very last where there are
/// more (it may be cut short). Without any backward pass: everything.
Window last_steps(const Trace& trace, int steps);

/// An SVG picture, readable on light and dark pages. Throws ValueError where nothing lies in the window.
std::string draw_svg(const Trace& trace, const Window& window);

}  // namespace lockstep::tools
