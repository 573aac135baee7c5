// What stands before each line of a rank on the console.
#pragma once

#include <string>
#include <string_view>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// `prefix` for a console in a job of `ranks`, which is a terminal or not; automatic is none of the results.
Prefix resolve_prefix(Prefix prefix, const LogOptions& logs, int ranks, bool terminal);

/// The text for a rank; `prefix` as from resolve_prefix().
std::string line_prefix(Prefix prefix, const LogOptions& logs, int rank, int local_rank);

/// --log-line-prefix-template with its names in place: ${role_name}, ${rank}, ${local_rank}, ${hostname}, with
/// or without braces; $$ is a dollar sign. Other names stay as they are.
std::string expand_line_prefix(std::string_view text, std::string_view role, int rank, int local_rank);

}  // namespace lockstep::launcher
