#include "launcher/flags.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace lockstep::launcher {
namespace {

constexpr std::string_view kJob = "The job";
constexpr std::string_view kProgram = "The program";
constexpr std::string_view kMeeting = "How ranks meet";
constexpr std::string_view kWatching = "Watching and output";
constexpr std::string_view kOther = "Other";

constexpr Flag kFlags[] = {
    {"nproc-per-node", 0, "N", "1", kJob,
     "Ranks to start on this machine: a number; cpu: one per usable core; gpu: one per GPU; auto: gpu if "
     "there is one, else cpu."},
    {"nnodes", 0, "N", "1", kJob, "Number of machines; this version runs on one: 1 or 1:1."},
    {"node-rank", 0, "R", "0", kJob, "Number of this machine: 0."},
    {"role", 0, "NAME", "default", kJob, "Label of the ranks (ROLE_NAME)."},
    {"max-restarts", 0, "N", "0", kJob, "How often all ranks are started again after a failure."},
    {"module", 'm', "", "", kProgram, "The target is a Python module, as for `python -m`."},
    {"no-python", 0, "", "", kProgram, "Execute the target as it is, even if its name ends in .py."},
    {"standalone", 0, "", "", kMeeting,
     "One machine and a free port. The default here; accepted for torchrun's sake."},
    {"master-addr", 0, "HOST", "127.0.0.1", kMeeting, "This machine: 127.0.0.1 or localhost."},
    {"master-port", 0, "PORT", "", kMeeting,
     "Port of the store for programs that need one (MASTER_PORT). Default: a free port."},
    {"rdzv-backend", 0, "NAME", "static", kMeeting, "static or c10d; the same thing on one machine."},
    {"rdzv-endpoint", 0, "HOST:PORT", "", kMeeting, "As --master-addr and --master-port."},
    {"rdzv-id", 0, "ID", "none", kMeeting,
     "Name of the run (TORCHELASTIC_RUN_ID). Default with --standalone: a random one."},
    {"rdzv-conf", 0, "K=V,...", "", kMeeting, "Accepted; one machine has nothing to negotiate."},
    {"shutdown-timeout", 0, "SECONDS", "30", kWatching,
     "Time that ranks have to end after SIGTERM, before SIGKILL. Also TORCH_ELASTIC_SHUTDOWN_TIMEOUT."},
    {"monitor-interval", 0, "SECONDS", "0.1", kWatching,
     "Accepted; lockrun is told of events and does not poll."},
    {"prefix", 0, "WHEN", "auto", kWatching,
     "Begin each line of output with [rank N]: off, on, color, or auto: with several ranks, in colour on a "
     "terminal."},
    {"help", 'h', "", "", kOther, "Print this text."},
    {"version", 0, "", "", kOther, "Print the version."},
};

/// Edits that turn `text` into `name` or into a beginning of it, whichever takes fewer.
size_t distance_to_beginning(std::string_view text, std::string_view name) {
  std::vector<size_t> row(name.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= text.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= name.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (text[i - 1] == name[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return *std::min_element(row.begin(), row.end());
}

}  // namespace

std::span<const Flag> flags() { return kFlags; }

std::string_view nearest_flag(std::string_view text) {
  std::string wanted(text.substr(0, text.find('=')));
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  if (wanted.size() < 2) return {};
  std::string_view best;
  size_t best_distance = wanted.size() / 3 + 1;
  for (const Flag& flag : kFlags) {
    const size_t distance = distance_to_beginning(wanted, flag.name);
    if (distance < best_distance) {
      best = flag.name;
      best_distance = distance;
    }
  }
  return best;
}

std::string environment_name(const Flag& flag) {
  std::string name = "PET_";
  for (const char c : flag.name) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

}  // namespace lockstep::launcher
