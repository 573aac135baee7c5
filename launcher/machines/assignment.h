// How a lockrun starts one on another machine, and what it tells that one through its standard streams. Pure.
//
// The started one says kGreeting on its standard output. Then its standard input brings the length of the
// assignment as a line, the assignment, and lines "signal N" for as long as the job runs. Its end means that
// the lockrun there has died: everything here is to end at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/node_options.h"

namespace lockstep::launcher {

/// With the number of this protocol.
inline constexpr std::string_view kGreeting = "lockrun, assigned 1";

struct Assignment {
  std::vector<std::string> arguments{};    ///< of lockrun, as they were typed there
  std::vector<std::string> environment{};  ///< "NAME=value", on top of what the login sets
  std::string directory{};                 ///< to run in
  ClusterPlace place{};                    ///< of the machine
  std::string secret{};
  std::string prefix{};  ///< value of --prefix
};

/// Length and assignment, as they are sent.
std::string to_bytes(const Assignment& assignment);

/// Throws ValueError for what to_bytes() has not made (without the line with the length).
Assignment parse_assignment(std::string_view bytes);

/// Those of `environment` that the other machine is to have too: all but what belongs to a machine or a
/// login.
std::vector<std::string> environment_to_send(const std::vector<std::string>& environment);

/// The flag with which a lockrun starts one elsewhere. Not for people, so it is not in the table of flags.
inline constexpr const char* kAssignedFlag = "--assigned";

/// The command that starts the lockrun at `lockrun` on `host`: ssh, which asks nothing, or `rsh` (the words
/// of LOCKRUN_RSH; empty: ssh), then the host and the command there.
std::vector<std::string> remote_command(const NodeOptions& nodes, const std::string& rsh, const Host& host,
                                        const std::string& lockrun);

}  // namespace lockstep::launcher
