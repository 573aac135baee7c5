// The table of lockrun's flags: the parser, --help, the man page, the completions and the suggestions are
// made from it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/node_options.h"
#include "launcher/cli/options.h"
#include "lockstep/cli/flag.h"

namespace lockstep::launcher {

namespace group {
inline constexpr std::string_view kJob = "The job";
inline constexpr std::string_view kProgram = "The program";
inline constexpr std::string_view kMeeting = "Several machines, and how ranks meet";
inline constexpr std::string_view kWatching = "Watching";
inline constexpr std::string_view kOutput = "Output";
inline constexpr std::string_view kOther = "Other";
}  // namespace group

static_assert(kStaticPort == 29500 && kDynamicPort == 29400, "the words below name them");

/// A row without a member is for options.cpp and node_options.cpp, which ask for its text. Each flag has an environment
/// variable, environment_name().
inline constexpr auto kFlags = std::to_array<Flag<Options>>({
    {.name = "nproc-per-node",
     .preset = "1",
     .value = "N",
     .group = group::kJob,
     .words = "Ranks to start on this machine: a number; cpu: one per usable core; gpu: one per GPU; auto: "
              "gpu if there is one, else cpu."},
    {.name = "nnodes",
     .preset = "1",
     .value = "N",
     .group = group::kJob,
     .words = "Number of machines, or MIN:MAX; you start lockrun on each of them (with the same flags, and "
              "--node-rank where the rendezvous is static), or name them in --hosts."},
    {.name = "max-restarts",
     .member = &Options::max_restarts,
     .preset = "0",
     .check = FlagCheck::at_least(0, "a number, 0 or more"),
     .value = "N",
     .group = group::kJob,
     .words = "How often all ranks are started again after a failure."},
    {.name = "max-replacements",
     .member = &Options::max_replacements,
     .preset = "0",
     .check = FlagCheck::at_least(0, "a number, 0 or more"),
     .value = "N",
     .group = group::kJob,
     .words =
         "How often a rank that dies is replaced by a new process, for which the others wait. The program must use the Trainer "
         "or lockstep::Recovery; otherwise the job ends or restarts."},
    {.name = "spares",
     .member = &Options::spares,
     .preset = "0",
     .check = FlagCheck::at_least(0, "a number, 0 or more"),
     .value = "M",
     .group = group::kJob,
     .words =
         "With --max-replacements: processes that run the program up to lockstep::init() and wait there. If a rank dies, one "
         "of them takes its place at once, and lockrun starts another one. Until then RANK is \"spare\"."},
    {.name = "restart-delay",
     .preset = "1",
     .value = "SECONDS",
     .group = group::kJob,
     .words =
         "The first restart is immediate. After a second failure within 60 s the restart waits this long, and "
         "twice as long after each further one, at most 60 s. 0: never wait."},
    {.name = "restart-refill",
     .preset = "0",
     .value = "TIME",
     .group = group::kJob,
     .words =
         "A restart stops counting after this time (90, 30m, 1h), so that a job that runs for weeks does "
         "not run out of restarts. 0: it always counts."},
    {.name = "role",
     .member = &Options::role,
     .preset = "default",
     .value = "NAME",
     .group = group::kJob,
     .words = "Label of the ranks (ROLE_NAME)."},
    {.name = "numa-binding",
     .check = FlagCheck::one_of("node socket exclusive core-complex"),
     .value = "HOW",
     .group = group::kJob,
     .words =
         "Bind each rank to cores, near its GPU where there are GPUs: node: those of a NUMA node; socket: "
         "those of a socket; exclusive: cores of its own in a NUMA node; core-complex: cores that share a "
         "last-level cache."},
    {.name = "virtual-local-rank",
     .member = &Options::virtual_local_rank,
     .group = group::kJob,
     .words = "LOCAL_RANK=0 for all, each seeing only its own GPU (CUDA_VISIBLE_DEVICES)."},
    {.name = "num-proc",
     .value = "N",
     .group = group::kJob,
     .words = "Horovod's: ranks on all hosts together.",
     .letters = "np"},
    {.name = "hosts",
     .value = "HOST:SLOTS,...",
     .group = group::kJob,
     .words = "Horovod's: the machines and the ranks on each; lockrun is started on the others through ssh.",
     .letters = "H"},
    {.name = "hostfile",
     .value = "FILE",
     .group = group::kJob,
     .words = "Like --hosts, from a file with a line `HOST slots=N` for each machine."},
    {.name = "ssh-port",
     .value = "PORT",
     .group = group::kJob,
     .words = "For --hosts: port of the machines' ssh. LOCKRUN_RSH names another command than ssh, and its "
              "flags."},
    {.name = "ssh-identity-file", .value = "FILE", .group = group::kJob, .words = "For --hosts: ssh's key."},
    {.name = "module",
     .member = &Options::module,
     .group = group::kProgram,
     .words = "The target is a Python module, as for `python -m`.",
     .letters = "m"},
    {.name = "no-python",
     .member = &Options::no_python,
     .group = group::kProgram,
     .words = "Execute the target as it is, even if its name ends in .py."},
    {.name = "run-path",
     .member = &Options::run_path,
     .group = group::kProgram,
     .words = "Run the Python script by runpy.run_path; wins over --no-python."},
    {.name = "local-rank",
     .member = &Options::pass_local_rank,
     .group = group::kProgram,
     .words = "Pass --local-rank=N to the program as its first argument, as torch.distributed.launch did."},
    {.name = "use-env",
     .member = &Options::use_env,
     .group = group::kProgram,
     .words = "Pass the rank in the environment only. The default; accepted for torch.distributed.launch's "
              "sake."},
    {.name = "start-method",
     .preset = "spawn",
     .check = FlagCheck::one_of("spawn fork forkserver"),
     .value = "NAME",
     .group = group::kProgram,
     .words = "Accepted, without effect: lockrun always executes a new process."},
    {.name = "stdin",
     .preset = "0",
     .value = "WHO",
     .group = group::kProgram,
     .words = "Who reads lockrun's standard input: a rank, all (each gets a copy) or none. The others have "
              "/dev/null."},
    {.name = "standalone",
     .member = &Options::standalone,
     .group = group::kMeeting,
     .words = "One machine and a free port; the rendezvous flags are ignored. The default for one machine."},
    {.name = "node-rank",
     .preset = "0",
     .value = "R",
     .group = group::kMeeting,
     .words = "Static: number of this machine, from 0. Default in a Kubernetes Indexed Job: "
              "JOB_COMPLETION_INDEX."},
    {.name = "master-addr",
     .preset = "127.0.0.1",
     .value = "HOST",
     .group = group::kMeeting,
     .words = "Static: the machine with --node-rank 0."},
    {.name = "master-port",
     .value = "PORT",
     .group = group::kMeeting,
     .words =
         "Static: port of the rendezvous there. Default: 29500. On one machine: MASTER_PORT, by default a "
         "free port."},
    {.name = "rdzv-backend",
     .preset = "static",
     .check = {.expected =
                   "static, or c10d with --rdzv-endpoint HOST:PORT, where HOST is one of the machines; "
                   "lockrun needs no etcd",
               .choices = "static c10d"},
     .value = "NAME",
     .group = group::kMeeting,
     .words = "static: numbered machines; c10d: machines that come and go, without numbers."},
    {.name = "rdzv-endpoint",
     .value = "HOST:PORT",
     .group = group::kMeeting,
     .words = "Where machines meet: one of them, which serves the rendezvous. Default port: 29400."},
    {.name = "rdzv-id",
     .preset = "none",
     .value = "ID",
     .group = group::kMeeting,
     .words = "Name of the run (TORCHELASTIC_RUN_ID). With --standalone: a random one."},
    {.name = "rdzv-conf",
     .preset = "join_timeout=600, last_call_timeout=30, keep_alive_interval=5, keep_alive_max_attempt=3",
     .value = "K=V,...",
     .group = group::kMeeting,
     .words = "token_file: file with a secret that all machines share; join_timeout, last_call_timeout and "
              "keep_alive_interval in seconds; keep_alive_max_attempt; is_host=true|false. A key that is not "
              "given keeps its default."},
    {.name = "local-addr",
     .value = "ADDRESS",
     .group = group::kMeeting,
     .words = "Address of this machine that the others use. Default: the one by which it reaches the "
              "endpoint."},
    {.name = "shutdown-timeout",
     .member = &Options::shutdown_timeout,
     .preset = "30",
     .check = FlagCheck::at_least(0, "a number of seconds, 0 or more"),
     .value = "SECONDS",
     .group = group::kWatching,
     .words =
         "Time that ranks have to end after SIGTERM, before SIGKILL. TORCH_ELASTIC_SHUTDOWN_TIMEOUT sets "
         "it too.",
     .variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {.name = "leftover-timeout",
     .member = &Options::leftover_timeout,
     .preset = "0.5",
     .check = FlagCheck::at_least(0, "a number of seconds, 0 or more"),
     .value = "SECONDS",
     .group = group::kWatching,
     .words = "Time that processes which ranks leave behind have to end by themselves, and again after "
              "SIGTERM, before SIGKILL. Ctrl-C kills them at once."},
    {.name = "hang-timeout",
     .member = &Options::hang_timeout,
     .preset = "60",
     .check = FlagCheck::at_least(0, "a number of seconds, 0 or more"),
     .value = "SECONDS",
     .group = group::kWatching,
     .words = "Warn when ranks wait this long for others, in init() or in a collective. 0: never."},
    {.name = "hang-action",
     .preset = "warn",
     .check = FlagCheck::one_of("warn end"),
     .value = "WHAT",
     .group = group::kWatching,
     .words = "What lockrun does then: warn, or end (the job ends as after a failure)."},
    {.name = "signals-to-handle",
     .preset = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     .value = "LIST",
     .group = group::kWatching,
     .words =
         "Signals that lockrun passes on as the request to end. SIGUSR1 and SIGUSR2 are passed on in any "
         "case, and end nothing unless they are in this list."},
    {.name = "torchrun-exit-code",
     .member = &Options::torchrun_exit_code,
     .group = group::kWatching,
     .words = "Exit with 1 after any failure, as torchrun does, not with the failed rank's code."},
    {.name = "monitor-interval",
     .preset = "0.1",
     .check = FlagCheck::at_least(0, "a number of seconds"),
     .value = "SECONDS",
     .group = group::kWatching,
     .words = "Accepted, without effect: lockrun does not poll."},
    {.name = "event-log",
     .member = &Options::event_log,
     .value = "FILE",
     .group = group::kWatching,
     .words =
         "Append what happens to the job to FILE, as lines of JSON: machines that join and leave, starts, exits, "
         "restarts, hangs, the end."},
    {.name = "event-log-handler",
     .preset = "null",
     .value = "NAME",
     .group = group::kWatching,
     .words = "Accepted if it is null. Events are lines on standard error."},
    {.name = "prefix",
     .preset = "auto",
     .check = FlagCheck::one_of("auto off on color"),
     .value = "WHEN",
     .group = group::kOutput,
     .words =
         "Begin each line of output with [rank N]: off, on, color, or auto: with several ranks, in color "
         "on a terminal."},
    {.name = "log-line-prefix-template",
     .value = "TEMPLATE",
     .group = group::kOutput,
     .words = "What stands there in place of [rank N]: text with ${role_name}, ${local_rank}, ${rank} and "
              "${hostname}.",
     .variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {.name = "log-dir",
     .value = "DIR",
     .group = group::kOutput,
     .words =
         "Keep logs in DIR/<run id>_<random>/attempt_<n>/<local rank>/. Default, where logs are wanted: a "
         "new directory below TMPDIR. /dev/null: none."},
    {.name = "redirects",
     .preset = "0",
     .value = "STREAMS",
     .group = group::kOutput,
     .words = "Write to log files instead of the console: 1: standard output, 2: standard error, 3: both, or "
              "by local rank: 0:3,1:2.",
     .letters = "r"},
    {.name = "tee",
     .preset = "0",
     .value = "STREAMS",
     .group = group::kOutput,
     .words = "Write to log files and to the console; as --redirects.",
     .letters = "t"},
    {.name = "local-ranks-filter",
     .value = "RANKS",
     .group = group::kOutput,
     .words = "Show only these local ranks on the console: 0,2."},
    {.name = "duplicate-stdout-filters",
     .value = "WORDS",
     .group = group::kOutput,
     .words =
         "Copy lines of standard output that hold one of these words to filtered_stdout.log. A comma in a "
         "word is written twice."},
    {.name = "duplicate-stderr-filters",
     .value = "WORDS",
     .group = group::kOutput,
     .words = "The same for standard error."},
    {.name = "logs-specs",
     .value = "NAME",
     .group = group::kOutput,
     .words = "Refused: it names Python code. The flags above say where logs go."},
    {.name = "dry-run",
     .member = &Options::dry_run,
     .group = group::kOther,
     .words = "Print what would be started, and where; start nothing."},
    {.name = "print",
     .member = &Options::print,
     .check = FlagCheck::one_of("man bash zsh tcsh"),
     .value = "WHAT",
     .group = group::kOther,
     .words = "Print the manual page (man) or the shell completions (bash, zsh, tcsh)."},
    {.name = "print-completion",
     .member = &Options::print,
     .check = FlagCheck::one_of("bash zsh tcsh"),
     .value = "SHELL",
     .group = group::kOther,
     .words = "torchrun's: print a completion script for this shell, as --print does."},
    {.name = "help",
     .member = &Options::help,
     .group = group::kOther,
     .words = "Print this text.",
     .letters = "h"},
    {.name = "version", .member = &Options::version, .group = group::kOther, .words = "Print the version."},
});

/// The name of a flag of the table; another one does not compile.
class FlagName {
 public:
  consteval FlagName(const char* name) : index_(index_of(name)) {}  // NOLINT(google-explicit-constructor)
  explicit constexpr FlagName(const Flag<Options>& flag)
      : index_(static_cast<size_t>(&flag - kFlags.data())) {}
  constexpr const Flag<Options>& row() const { return kFlags[index_]; }
  constexpr size_t index() const { return index_; }

 private:
  static consteval size_t index_of(std::string_view name) {
    for (size_t i = 0; i < kFlags.size(); ++i) {
      if (kFlags[i].name == name) return i;
    }
    throw "lockrun has no flag of this name";
  }
  size_t index_;
};

inline std::span<const Flag<Options>> flags() { return kFlags; }

/// Whether it stands alone, without a value.
constexpr bool is_switch(const Flag<Options>& flag) { return flag.value.empty(); }

/// Names of the headings, in the order of --help.
std::vector<std::string_view> flag_groups();

/// The flag with that name ('_' for '-' is fine), or nullptr.
const Flag<Options>* find_flag(std::string_view name);

/// The name of the flag that `text` was probably meant to be, or empty when none is near.
std::string nearest_flag(std::string_view text);

/// Name of the environment variable with the flag's default: PET_NPROC_PER_NODE for nproc-per-node.
std::string environment_name(const Flag<Options>& flag);

}  // namespace lockstep::launcher
