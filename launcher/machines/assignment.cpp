#include "launcher/machines/assignment.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/shell.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

/// These variables are not sent: they describe a machine, a login or a terminal there, or the lockrun that
/// this one runs under.
constexpr std::string_view kStay[] = {"HOME",       "HOSTNAME", "LOGNAME", "LS_COLORS", "MAIL",
                                      "OLDPWD",     "PWD",      "SHELL",   "SHLVL",     env::kTerm,
                                      env::kTmpdir, "USER",     "DISPLAY", "WINDOWID",  "_"};
constexpr std::string_view kStayBeginnings[] = {"SSH_",       "XDG_",          "DBUS_",
                                                "BASH_FUNC_", env::kSegmentFd, env::kSegmentOwner};

}  // namespace

std::string to_bytes(const Assignment& assignment) {
  const ClusterPlace& place = assignment.place;
  // A binary form, since paths and variables need not be UTF-8.
  const std::string packed = to_cbor({{"arguments", assignment.arguments},
                                      {"environment", assignment.environment},
                                      {"directory", assignment.directory},
                                      {"nodes", place.nodes},
                                      {"node_rank", place.node_rank},
                                      {"slots", place.slots},
                                      {"host", place.master_addr},
                                      {"port", place.master_port},
                                      {"secret", assignment.secret},
                                      {"prefix", assignment.prefix}});
  return fmt::format("{}\n{}", packed.size(), packed);
}

Assignment parse_assignment(std::string_view bytes) {
  try {
    const json message = from_cbor(bytes);
    Assignment assignment;
    assignment.arguments = message.at("arguments").get<std::vector<std::string>>();
    assignment.environment = message.at("environment").get<std::vector<std::string>>();
    assignment.directory = message.at("directory").get<std::string>();
    assignment.place.nodes = message.at("nodes").get<int>();
    assignment.place.node_rank = message.at("node_rank").get<int>();
    assignment.place.slots = message.at("slots").get<int>();
    assignment.place.master_addr = message.at("host").get<std::string>();
    assignment.place.master_port = message.at("port").get<uint16_t>();
    assignment.secret = message.at("secret").get<std::string>();
    assignment.prefix = message.at("prefix").get<std::string>();
    return assignment;
  } catch (const json::exception&) {
    throw ValueError("what standard input brings is no assignment of a lockrun's");
  }
}

std::vector<std::string> environment_to_send(const std::vector<std::string>& environment) {
  std::vector<std::string> sent;
  for (const std::string& entry : environment) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    const bool stays = std::find(std::begin(kStay), std::end(kStay), name) != std::end(kStay) ||
                       std::any_of(std::begin(kStayBeginnings), std::end(kStayBeginnings),
                                   [&](std::string_view beginning) { return name.starts_with(beginning); });
    if (!stays) sent.push_back(entry);
  }
  return sent;
}

std::vector<std::string> remote_command(const NodeOptions& nodes, const std::string& rsh, const Host& host,
                                        const std::string& lockrun) {
  std::vector<std::string> words;
  std::istringstream given(rsh);
  for (std::string word; given >> word;) words.push_back(word);
  if (words.empty()) {
    words = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"};
    if (nodes.ssh_port != 0) words.insert(words.end(), {"-p", std::to_string(nodes.ssh_port)});
    if (!nodes.ssh_identity.empty()) words.insert(words.end(), {"-i", nodes.ssh_identity});
    words.emplace_back("--");
  }
  words.push_back(host.name);
  words.push_back(fmt::format("exec {} {}", shell_quoted(lockrun), kAssignedFlag));
  return words;
}

}  // namespace lockstep::launcher
