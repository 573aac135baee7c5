#include "launcher/machines/remote_command.h"

#include <sstream>

namespace lockstep::launcher {

std::string quoted(const std::string& word) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
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
  words.push_back("exec " + quoted(lockrun) + " " + kAgentFlag);
  return words;
}

}  // namespace lockstep::launcher
