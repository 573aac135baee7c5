#include "launcher/run/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "launcher/machines/agent.h"
#include "launcher/machines/hosts.h"
#include "launcher/machines/machine.h"
#include "launcher/output/event_log.h"
#include "launcher/output/log_file.h"
#include "launcher/process/limits.h"
#include "launcher/process/poll_set.h"
#include "launcher/process/restart_policy.h"
#include "launcher/process/scratch.h"
#include "launcher/run/attempt.h"
#include "launcher/run/dry_run.h"
#include "launcher/run/hosts_job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"
#include "lockstep/base/host_name.h"
#include "lockstep/timeline/parts_folder.h"

extern char** environ;

namespace lockstep::launcher {
namespace {

std::string temporary_directory() { return env::get(env::kTmpdir).value_or("/tmp"); }

/// Makes the directory for the logs of this run.
std::string make_log_directory(const LogOptions& logs, const std::string& run_id) {
  try {
    const std::filesystem::path folder = logs.directory.empty()
                                             ? make_unique_directory(temporary_directory() + "/lockrun_logs")
                                             : logs.directory;
    // Ranks may change their working directory.
    const std::filesystem::path place = std::filesystem::absolute(folder).lexically_normal();
    make_directories(place);
    return make_unique_directory(place / run_id);
  } catch (const FileError& error) {
    if (logs.directory.empty()) throw;
    throw FileError(fmt::format("--log-dir {}: {}", logs.directory, error.what()));
  }
}

/// Where the ranks' error files and logs are.
class RunDirectory {
 public:
  /// Makes it where logs are wanted; else the guardian does, and removes it.
  RunDirectory(const LogOptions& logs, std::string run_id) : kept_(logs.wanted()) {
    std::replace(run_id.begin(), run_id.end(), '/', '_');
    scratch_ = scratch_name(std::filesystem::absolute(temporary_directory()).lexically_normal(), random_id());
    path_ = kept_ ? make_log_directory(logs, run_id) : scratch_;
  }
  const std::string& path() const { return path_; }
  const std::string& scratch() const { return scratch_; }  ///< where what is not kept is
  bool kept() const { return kept_; }

 private:
  bool kept_;
  std::string path_, scratch_;
};

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

void say(const std::string& text) { std::fprintf(stderr, "lockrun: %s\n", with_given_names(text).c_str()); }

class JobRun {
 public:
  JobRun(const Options& options, const Machine& machine, Signals& signals, Hosts* hosts)
      : options_(options),
        signals_(signals),
        hosts_(hosts),
        started_(monotonic_seconds()),
        program_(resolve_program(options.command, {options.module, options.no_python, options.run_path},
                                 env::get(env::kPythonExec).value_or("python3"),
                                 env::get(env::kPath).value_or("/usr/local/bin:/usr/bin:/bin"))),
        machine_(machine) {}

  int run() {
    for (const std::string& warning : options_.warnings) say(fmt::format("warning: {}", warning));
    // All machines of a job have one id.
    const std::string run_id = !options_.rdzv_id.empty()  ? options_.rdzv_id
                               : options_.nodes.several() ? std::string("none")
                                                          : random_id();
    job::LaunchEnvironment environment;
    environment.local_world_size = environment.world_size = options_.nproc_per_node;
    environment.role = options_.role;
    for (const int signal : options_.signals) {
      environment.signals += (environment.signals.empty() ? "" : ",") + signal_name(signal);
    }
    environment.run_id = run_id;
    environment.max_restarts = options_.max_restarts;
    environment.master_addr = "127.0.0.1";
    environment.agent_store = true;
    environment.virtual_local_rank = options_.virtual_local_rank;
    const auto cores = place_ranks(options_.binding, options_.nproc_per_node);
    environment.threads = threads_per_rank(cores);
    const auto store = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lockstep-store";
    Job job{options_, program_, own_environment(), environment, listener_, store.string()};
    job.cores = cores;
    job.hosts = hosts_;
    EventLog events(options_.dry_run ? "" : options_.event_log, run_id);
    job.events = &events;
    job.started = started_;
    if (options_.dry_run) {
      std::puts(dry_run_text(job, machine_).c_str());
      return 0;
    }
    if (!options_.assigned && options_.nproc_per_node > 1 && !env::get(env::kOmpNumThreads)) {
      say(fmt::format("{} per rank ({} cores, {} ranks). Set {} to change it.",
                      environment.threads == 1 ? "1 thread" : fmt::format("{} threads", environment.threads),
                      machine_.cores, options_.nproc_per_node, env::kOmpNumThreads));
    }
    const RunDirectory directory(options_.logs, run_id);
    if (directory.kept()) say(fmt::format("logs are in {}", directory.path()));
    job.scratch_directory = directory.scratch();
    job.directory = directory.path();
    const timeline::JobParts timeline(run_id);
    job.environment.timeline_parts = timeline.folder().string();
    const int code = options_.nodes.several() ? run_on_several(job) : run_alone(job);
    if (!options_.nodes.several()) {
      events.write({.event = "end", .code = code, .restarts = job.environment.restart_count});
    }
    if (!reasons_.empty() && !options_.assigned) {
      std::string list = reasons_.size() == 1 ? "1 restart:" : fmt::format("{} restarts:", reasons_.size());
      for (const std::string& reason : reasons_) list += "\n  " + reason;
      say(list);
    }
    return options_.torchrun_exit_code && code != 0 && code != kResumeCode ? 1 : code;
  }

 private:
  int threads_per_rank(const std::vector<CpuSet>& cores) const {
    if (cores.empty()) return std::max(1, machine_.cores / options_.nproc_per_node);
    // Ranks that are bound to the same cores share them.
    size_t least = static_cast<size_t>(machine_.cores);
    for (const CpuSet& set : cores) {
      least = std::min(least, set.size() / static_cast<size_t>(std::count(cores.begin(), cores.end(), set)));
    }
    return std::max(1, static_cast<int>(least));
  }

  /// What every machine of a job says alike is said by the one that was started by hand.
  void note(const std::string& text) const {
    if (!options_.assigned) say(text);
  }

  static void print_report(const AttemptResult& result) {
    if (!result.report.empty()) std::fprintf(stderr, "%s\n", result.report.c_str());
  }

  /// How the job has ended, without what was said while it happened.
  void note_verdict(const Verdict& verdict, bool resume, const std::vector<std::string>& told) const {
    if (verdict.reason.empty()) return;
    const bool is_told = std::find(told.begin(), told.end(), verdict.reason) != told.end();
    note(fmt::format("the job has {}{}", resume ? "ended" : "failed", is_told ? "" : ": " + verdict.reason));
  }

  AttemptResult attempt(Job& job) {
    if (hosts_ != nullptr) hosts_->drain();
    AttemptResult result = run_attempt(job, signals_);
    result.joined_before = has_joined_;
    has_joined_ = has_joined(result);
    if (job.agent == nullptr) print_report(result);
    if (!result.replaced.empty()) say(result.replaced);
    if (!result.complaint.empty()) say(fmt::format("warning: {}", result.complaint));
    job.replacements += result.replacements;
    if (!result.error.empty()) say(fmt::format("error: {}", result.error));
    ++job.attempt;
    return result;
  }

  /// The other machines are told why where it cannot go on.
  AttemptResult attempt_of_several(Job& job) {
    try {
      return attempt(job);
    } catch (const std::exception& error) {
      job.agent->report_failure(fmt::format("on {}: {}", host_name(), error.what()), 1);
      throw;
    }
  }

  /// The report follows what becomes of the job.
  Verdict conclude(Agent& agent, bool succeeded, const AttemptResult& result) {
    try {
      return agent.conclude(succeeded, signals_);
    } catch (const std::exception&) {
      print_report(result);
      throw;
    }
  }

  void note_restart(const std::string& reason) {
    const double after = monotonic_seconds() - started_;
    char time[32];
    std::snprintf(time, sizeof time, "after %.1f s: ", after);
    reasons_.push_back(time + reason);
  }

  /// The one that is to end the job and comes within `seconds`.
  std::optional<int> wait_for_signal(double seconds) {
    const double deadline = monotonic_seconds() + seconds;
    std::optional<int> ending;
    for (double left = seconds; left > 0 && !ending; left = deadline - monotonic_seconds()) {
      PollSet polls;
      polls.add(signals_.fd(), POLLIN, [&] {
        while (const auto signal = signals_.receive()) {
          const SignalAction action = action_of(*signal, options_.signals, false, {});
          if (action == SignalAction::end) ending = signal;
          if (action == SignalAction::suspend) ::raise(SIGSTOP);
        }
      });
      polls.wait(left);
    }
    return ending;
  }

  int run_alone(Job& job) {
    listener_ = job::listen_on_loopback(options_.master_port);
    job.environment.master_port = listener_.port;
    RestartPolicy restarts({options_.max_restarts, options_.restart_delay, options_.restart_refill});
    while (true) {
      const AttemptResult result = attempt(job);
      const int code = attempt_exit_code(result);
      if (code == 0 || code == kResumeCode || result.asked_to_end || !result.error.empty() ||
          !may_restart_after(code))
        return code;
      if (options_.max_restarts > 0 && looks_like_wrong_usage(result)) {
        say("the ranks ended with exit code 2 before any collective, as after a mistake in the command line; they are not "
            "started again");
        return code;
      }
      const auto delay = restarts.after_failure(monotonic_seconds());
      if (!delay) return code;
      job.environment.restart_count = restarts.restarts();
      job.events->write(
          {.event = "restart", .reason = attempt_reason(result), .restarts = restarts.restarts()});
      note_restart(attempt_reason(result));
      say(fmt::format("starting all ranks again{} (restart {} of {})",
                      (*delay > 0 ? fmt::format(" in {:g} s", *delay) : ""), restarts.restarts(),
                      options_.max_restarts));
      if (const auto signal = wait_for_signal(*delay)) {
        say(fmt::format("{} received; the ranks are not started again", signal_name(*signal)));
        return code;
      }
    }
  }

  /// For a lockrun that is to leave a job which goes on, or which begins or starts again: what its ranks have saved before
  /// is resumed later.
  int code_without_ranks(int signal) const {
    return has_joined_ && signal != SIGINT ? kResumeCode : 128 + signal;
  }

  static int leave(Agent& agent, int signal, int code) {
    agent.leave(code);
    say(fmt::format("{} received; this machine leaves the job", signal_name(signal)));
    return code;
  }

  int run_on_several(Job& job) {
    Agent agent(options_, hosts_, say);
    job.agent = &agent;
    const int code = run_with(agent, job);
    job.agent = nullptr;
    return code;
  }

  int run_with(Agent& agent, Job& job) {
    const auto interrupted = [&] {
      return leave(agent, *agent.interrupted_by(), code_without_ranks(*agent.interrupted_by()));
    };
    const auto connect = [&] {
      listener_ = {};
      if (!agent.connect(signals_)) return false;
      listener_ = job::listen_on(agent.address());
      job.environment.interface = job::interface_of(agent.address());
      job.environment.local_addr = agent.address().host();
      return true;
    };
    if (!connect()) return interrupted();
    while (true) {
      if (!agent.connected() && !connect()) return interrupted();
      const auto place = agent.meet(signals_, listener_.port);
      if (agent.interrupted_by()) return interrupted();
      if (!agent.connected()) continue;
      if (place) {
        job::LaunchEnvironment& environment = job.environment;
        environment.restart_count = place->restarts;
        environment.group_rank = place->group_rank;
        environment.group_world_size = place->groups;
        environment.rank = place->first_rank;
        environment.world_size = place->world_size;
        environment.master_addr = place->master_addr;
        environment.master_port = place->master_port;
        job.epoch = place->epoch;
        job.lost = place->lost;
        note(fmt::format("machine {} of {}, {} of {}, on {}", place->group_rank, place->groups,
                         range_of_ranks(place->first_rank, options_.nproc_per_node), place->world_size,
                         agent.address().host()));
        if (!place->warning.empty()) note(fmt::format("warning: {}", place->warning));
        const AttemptResult result = attempt_of_several(job);
        if (result.interrupted_by) print_report(result);
        agent.set_last_end({saved_nothing(result), looks_like_wrong_usage(result), untouched(result)});
        if (result.interrupted_by) {
          const int code = attempt_exit_code(result);
          agent.leave(code != 0 ? code : 128 + *result.interrupted_by);
          return code;
        }
        const int code = attempt_exit_code(result);
        if (code != 0 && code != kResumeCode && !result.ended_by_peers)
          agent.report_failure(attempt_reason(result), code);
        const bool succeeded = code == 0 && !result.ended_by_peers;
        const Verdict verdict = conclude(agent, succeeded, result);
        if (!verdict.again) {
          const bool resume = verdict.code == kResumeCode || verdict.asked;
          note_verdict(verdict, resume, result.told);
          print_report(result);
          // A rank here that failed while it was to save: there may be nothing to resume from. Nor is there where the program
          // does not save.
          const bool no_resume = verdict.asked && verdict.code == kResumeCode && code == 128 + SIGTERM;
          return (resume && first_failure(result.workers)) || no_resume ? code : verdict.code;
        }
        if (const auto signal = result.asked_to_end ? result.asked_to_end : agent.interrupted_by()) {
          print_report(result);
          // Where the ranks have ended well, or for the sake of other machines, nothing has failed here.
          const bool has_failed = first_failure(result.workers) || (code != 0 && !result.ended_by_peers);
          return leave(agent, *signal, has_failed ? code : code_without_ranks(*signal));
        }
        print_report(result);
        note_restart(verdict.reason);
        note(fmt::format("starting all ranks again: {}", verdict.reason));
      } else {
        const Verdict verdict = agent.conclude(false, signals_);
        if (!verdict.reason.empty()) note(fmt::format("the job has ended: {}", verdict.reason));
        return verdict.code;
      }
    }
  }

  const Options& options_;
  Signals& signals_;
  Hosts* hosts_;
  double started_;
  Program program_;
  const Machine& machine_;
  job::Listener listener_;
  std::vector<std::string> reasons_;
  bool has_joined_ = false;  ///< ranks here have reached init(), in a world of more than one
};

}  // namespace

int run_job(const Options& options, const Machine& machine) {
  check_proc();
  raise_open_files();
  Signals signals(options.signals);
  if (options.nodes.hosts.empty() || options.dry_run) return JobRun(options, machine, signals, nullptr).run();
  return run_on_hosts(options, signals, [&](const Options& here, Hosts& hosts) {
    return JobRun(here, machine, signals, &hosts).run();
  });
}

}  // namespace lockstep::launcher
