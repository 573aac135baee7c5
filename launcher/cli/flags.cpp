#include "launcher/cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "launcher/cli/node_options.h"
#include "lockstep/cli/nearest.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kJob = "The job";
constexpr std::string_view kProgram = "The program";
constexpr std::string_view kMeeting = "Several machines, and how ranks meet";
constexpr std::string_view kWatching = "Watching";
constexpr std::string_view kOutput = "Output";
constexpr std::string_view kOther = "Other";

const std::string kMasterPortHelp = fmt::format(
    "Static: port of the rendezvous there. Default: {}. On one machine: MASTER_PORT, by default a free port.",
    kStaticPort);
const std::string kEndpointHelp = fmt::format(
    "Where machines meet: one of them, which serves the rendezvous. Default port: {}.", kDynamicPort);

const Flag kFlags[] = {
    {"nproc-per-node", "", "N", "1", kJob,
     "Ranks to start on this machine: a number; cpu: one per usable core; gpu: one per GPU; auto: gpu if "
     "there is one, else cpu."},
    {"nnodes", "", "N", "1", kJob,
     "Number of machines, or MIN:MAX; you start lockrun on each of them (with the same flags, and "
     "--node-rank where the rendezvous is static), or name them in --hosts."},
    {"max-restarts", "", "N", "0", kJob, "How often all ranks are started again after a failure."},
    {"restart-delay", "", "SECONDS", "1", kJob,
     "The first restart is immediate. After a second failure within 60 s the restart waits this long, and twice as long after each further one, at most 60 s. 0: never wait."},
    {"restart-refill", "", "TIME", "0", kJob,
     "A restart stops counting after this time (90, 30m, 1h), so that a job that runs for weeks does not run out of restarts. 0: it always counts."},
    {"role", "", "NAME", "default", kJob, "Label of the ranks (ROLE_NAME)."},
    {"numa-binding", "", "HOW", "", kJob,
     "Bind each rank to cores, near its GPU where there are GPUs: node: those of a NUMA node; socket: those "
     "of a "
     "socket; exclusive: cores of its own in a NUMA node; core-complex: cores that share a last-level cache.",
     "node socket exclusive core-complex"},
    {"virtual-local-rank", "", "", "", kJob,
     "LOCAL_RANK=0 for all, each seeing only its own GPU (CUDA_VISIBLE_DEVICES)."},
    {"num-proc", "np", "N", "", kJob, "Horovod's: ranks on all hosts together."},
    {"hosts", "H", "HOST:SLOTS,...", "", kJob,
     "Horovod's: the machines and the ranks on each; lockrun is started on the others through ssh."},
    {"hostfile", "", "FILE", "", kJob,
     "Like --hosts, from a file with a line `HOST slots=N` for each machine."},
    {"ssh-port", "", "PORT", "", kJob,
     "For --hosts: port of the machines' ssh. LOCKRUN_RSH names another command than ssh, and its flags."},
    {"ssh-identity-file", "", "FILE", "", kJob, "For --hosts: ssh's key."},
    {"module", "m", "", "", kProgram, "The target is a Python module, as for `python -m`."},
    {"no-python", "", "", "", kProgram, "Execute the target as it is, even if its name ends in .py."},
    {"run-path", "", "", "", kProgram, "Run the Python script by runpy.run_path; wins over --no-python."},
    {"local-rank", "", "", "", kProgram,
     "Pass --local-rank=N to the program as its first argument, as torch.distributed.launch did."},
    {"use-env", "", "", "", kProgram,
     "Pass the rank in the environment only. The default; accepted for torch.distributed.launch's sake."},
    {"start-method", "", "NAME", "spawn", kProgram, "Accepted; a fresh process is executed in any case.",
     "spawn fork forkserver"},
    {"stdin", "", "WHO", "0", kProgram,
     "Who reads lockrun's standard input: a rank, all (each gets a copy) or none. The others have /dev/null."},
    {"standalone", "", "", "", kMeeting,
     "One machine and a free port; the rendezvous flags are ignored. The default for one machine."},
    {"node-rank", "", "R", "0", kMeeting,
     "Static: number of this machine, from 0. Default in a Kubernetes Indexed Job: JOB_COMPLETION_INDEX."},
    {"master-addr", "", "HOST", "127.0.0.1", kMeeting, "Static: the machine with --node-rank 0."},
    {"master-port", "", "PORT", "", kMeeting, kMasterPortHelp},
    {"rdzv-backend", "", "NAME", "static", kMeeting,
     "static: numbered machines; c10d: machines that come and go, without numbers."},
    {"rdzv-endpoint", "", "HOST:PORT", "", kMeeting, kEndpointHelp},
    {"rdzv-id", "", "ID", "none", kMeeting,
     "Name of the run (TORCHELASTIC_RUN_ID). With --standalone: a random one."},
    {"rdzv-conf", "", "K=V,...",
     "join_timeout=600, last_call_timeout=30, keep_alive_interval=5, keep_alive_max_attempt=3", kMeeting,
     "token_file: file with a secret that all machines share; join_timeout, last_call_timeout and keep_alive_interval in seconds; keep_alive_max_attempt; is_host=true|false. A key that is not given keeps its default."},
    {"local-addr", "", "ADDRESS", "", kMeeting,
     "Address of this machine that the others use. Default: the one by which it reaches the endpoint."},
    {"shutdown-timeout", "", "SECONDS", "30", kWatching,
     "Time that ranks have to end after SIGTERM, before SIGKILL. TORCH_ELASTIC_SHUTDOWN_TIMEOUT sets it too."},
    {"leftover-timeout", "", "SECONDS", "0.5", kWatching,
     "Time that processes which ranks leave behind have to end by themselves, and again after SIGTERM, before SIGKILL. Ctrl-C kills them at once."},
    {"hang-timeout", "", "SECONDS", "60", kWatching,
     "Warn when ranks wait this long for others, in init() or in a collective. 0: never."},
    {"hang-action", "", "WHAT", "warn", kWatching,
     "What lockrun does then: warn, or end (the job ends as after a failure).", "warn end"},
    {"signals-to-handle", "", "LIST", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", kWatching,
     "Signals that lockrun passes on as the request to end. SIGUSR1 and SIGUSR2 are passed on in any case, "
     "and "
     "end nothing unless they are in this list."},
    {"torchrun-exit-code", "", "", "", kWatching,
     "Exit with 1 after any failure, as torchrun does, not with the failed rank's code."},
    {"monitor-interval", "", "SECONDS", "0.1", kWatching,
     "Accepted; lockrun is told of events and does not poll."},
    {"event-log-handler", "", "NAME", "null", kWatching,
     "Accepted if it is null. Events are lines on standard error."},
    {"prefix", "", "WHEN", "auto", kOutput,
     "Begin each line of output with [rank N]: off, on, color, or auto: with several ranks, in colour on a "
     "terminal.",
     "auto off on color"},
    {"log-dir", "", "DIR", "", kOutput,
     "Keep logs in DIR/<run id>_<random>/attempt_<n>/<local rank>/. Default, where logs are wanted: a new "
     "directory below TMPDIR. /dev/null: none."},
    {"redirects", "r", "STREAMS", "0", kOutput,
     "Write to log files instead of the console: 1: standard output, 2: standard error, 3: both, or by local "
     "rank: "
     "0:3,1:2."},
    {"tee", "t", "STREAMS", "0", kOutput, "Write to log files and to the console; as --redirects."},
    {"local-ranks-filter", "", "RANKS", "", kOutput, "Show only these local ranks on the console: 0,2."},
    {"duplicate-stdout-filters", "", "WORDS", "", kOutput,
     "Copy lines of standard output that hold one of these words to filtered_stdout.log. A comma in a word "
     "is "
     "written twice."},
    {"duplicate-stderr-filters", "", "WORDS", "", kOutput, "The same for standard error."},
    {"logs-specs", "", "NAME", "", kOutput,
     "Refused: it names Python code. The flags above say where logs go."},
    {"dry-run", "", "", "", kOther, "Print what would be started, and where; start nothing."},
    {"print", "", "WHAT", "", kOther, "Print the manual page (man) or the shell completions (bash, zsh).",
     "man bash zsh"},
    {"help", "h", "", "", kOther, "Print this text."},
    {"version", "", "", "", kOther, "Print the version."},
};

}  // namespace

std::span<const Flag> flags() { return kFlags; }

std::string nearest_flag(std::string_view text) {
  std::vector<std::string> names;
  for (const Flag& flag : kFlags) names.emplace_back(flag.name);
  return nearest_word(text, names);
}

std::vector<std::string_view> flag_groups() { return {kJob, kProgram, kMeeting, kWatching, kOutput, kOther}; }

const Flag* find_flag(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  const auto found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                  [&](const Flag& flag) { return flag.name == wanted; });
  return found == std::end(kFlags) ? nullptr : found;
}

std::string environment_name(const Flag& flag) {
  std::string name = "PET_";
  for (const char c : flag.name) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

}  // namespace lockstep::launcher
