// How lockrun is started on another machine. Pure: no effects.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/node_options.h"

namespace lockstep::launcher {

/// The flag with which a lockrun starts one elsewhere. Not for people, so it is not in the table of flags.
inline constexpr const char* kAgentFlag = "--agent";

/// `word` as one would type it in a shell.
std::string quoted(const std::string& word);

/// The command that starts the lockrun at `lockrun` on `host`: ssh, which asks nothing, or `rsh` (the words
/// of LOCKRUN_RSH; empty: ssh), then the host and the command there.
std::vector<std::string> remote_command(const NodeOptions& nodes, const std::string& rsh, const Host& host,
                                        const std::string& lockrun);

}  // namespace lockstep::launcher
