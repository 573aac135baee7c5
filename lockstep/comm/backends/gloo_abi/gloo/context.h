// The one member that ProcessGroupGloo.hpp calls; see README.md.
#pragma once

#include <chrono>
#include <memory>

#include "gloo/transport/device.h"

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
