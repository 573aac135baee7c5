// The members that ProcessGroupGloo.hpp and ../../gloo.cpp call; see README.md.
#pragma once

#include <chrono>
#include <memory>

#include "gloo/transport/device.h"

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
