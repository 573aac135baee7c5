#include "launcher/job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "launcher/attempt.h"
#include "launcher/clock.h"
#include "launcher/machine.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

extern char** environ;

namespace lockstep::launcher {
namespace {

/// A private directory for the ranks' error files.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_(env::get("TMPDIR").value_or("/tmp") + "/lockrun_XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw FileError("cannot create a temporary directory " + path_ + ": " + std::strerror(errno) +
                      "; TMPDIR names another place");
    }
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// So that no pipe gets the number of a standard stream.
void open_standard_streams() {
  int fd = -1;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

int attempt_exit_code(const AttemptResult& result) {
  if (!result.error.empty()) return 1;
  if (const auto first = first_failure(result.workers)) return exit_code(result.workers[*first].wait_status);
  const bool all_succeeded = std::all_of(result.workers.begin(), result.workers.end(),
                                         [](const WorkerResult& worker) { return worker.wait_status == 0; });
  // Ranks that took the signal as the request to save and leave have succeeded.
  return all_succeeded ? 0 : 128 + result.interrupted_by.value_or(SIGTERM);
}

}  // namespace

int run_job(const Options& options, const Machine& machine) {
  open_standard_streams();
  const double started = monotonic_seconds();
  Program program = resolve_program(options.command, options.module, options.no_python,
                                    env::get("PYTHON_EXEC").value_or("python3"),
                                    env::get("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  const Listener listener = listen_on_loopback(options.master_port);
  const ScratchDirectory scratch;

  JobEnvironment environment;
  environment.local_world_size = environment.world_size = options.nproc_per_node;
  environment.role = options.role;
  environment.run_id = options.rdzv_id.empty() ? random_id() : options.rdzv_id;
  environment.master_port = listener.port;
  environment.max_restarts = options.max_restarts;
  environment.threads = std::max(1, machine.cores / options.nproc_per_node);
  environment.error_directory = scratch.path();
  const auto store = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lockstep-store";
  Job job{options, std::move(program), own_environment(), environment, listener, store.string(), started};

  Signals signals;
  while (true) {
    const AttemptResult result = run_attempt(job, signals);
    if (!result.report.empty()) std::fprintf(stderr, "%s\n", result.report.c_str());
    if (!result.error.empty()) std::fprintf(stderr, "lockrun: error: %s\n", result.error.c_str());
    const int code = attempt_exit_code(result);
    const int restarts = job.environment.restart_count;
    if (code == 0 || result.interrupted_by || !result.error.empty() || restarts == options.max_restarts)
      return code;
    ++job.environment.restart_count;
    std::fprintf(stderr, "lockrun: starting all ranks again (restart %d of %d)\n", restarts + 1,
                 options.max_restarts);
  }
}

}  // namespace lockstep::launcher
