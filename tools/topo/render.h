// A topology and its measured speeds as text, JSON or a picture. Pure.
#pragma once

#include <string>

#include "tools/topo/measure.h"
#include "tools/topo/topology.h"

namespace lockstep::topo {

/// `speeds` is empty, or has a row for each of the topology's cpus that `ranks` names by their place.
struct Report {
  Topology topology{};
  std::vector<size_t> ranks{};  ///< places in topology.cpus of rank 0, 1...
  SpeedMatrix speeds{};
};

/// In lines of at most `columns`, where that is possible: wide matrices are shown in parts.
std::string as_text(const Report& report, int columns);
std::string as_json(const Report& report);
std::string as_svg(const Report& report);

}  // namespace lockstep::topo
