// Which network interfaces GLOO_SOCKET_IFNAME allows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::job {

/// The interfaces of `names` that `rule` allows, the preferred first. Gloo's form "eth0,ib0" and NCCL's "=eth0,ib0" name
/// them, in order of preference; NCCL's "^docker,lo" excludes those that begin so, "^=docker0" those of that name. Pure.
std::vector<std::string> allowed_interfaces(std::string_view rule, const std::vector<std::string>& names);

/// Whether Gloo itself understands `rule`: it knows names only.
bool is_plain_interface_list(std::string_view rule);

}  // namespace lockstep::job
