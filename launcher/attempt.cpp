#include "launcher/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "launcher/clock.h"
#include "launcher/guardian.h"
#include "launcher/output.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/comm/shm/segment.h"

namespace lockstep::launcher {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// The terminal belongs to rank 0, unless lockrun runs in the background.
bool may_read_stdin() { return ::isatty(0) != 1 || ::tcgetpgrp(0) == ::getpgrp(); }

class Attempt {
 public:
  Attempt(const Job& job, Signals& signals)
      : job_(job),
        signals_(signals),
        segment_fd_(shm::create_segment(job.options.nproc_per_node)),
        segment_(shm::Segment::map(segment_fd_.get())),
        output_(job.options.nproc_per_node, job.options.prefix, !job.program.is_python),
        null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
        workers_(static_cast<size_t>(job.options.nproc_per_node)),
        running_(workers_.size()) {}

  AttemptResult run() {
    plan();
    Guardian guardian(plan_);
    worker_ends_.clear();  // the workers have them now
    guardian_ = &guardian;
    while (!finished_) wait_and_handle();
    output_.finish();
    return result();
  }

 private:
  void plan() {
    JobEnvironment environment = job_.environment;
    environment.segment_fd = segment_fd_.get();
    if (const int columns = output_.terminal_columns(); columns > 0) environment.terminal_columns = columns;
    for (size_t i = 0; i < workers_.size(); ++i) {
      const int local_rank = static_cast<int>(i);
      workers_[i].rank = environment.first_rank + local_rank;
      worker_ends_.push_back(output_.add_worker(workers_[i].rank));
      ProcessSpec spec{job_.program.path, job_.program.argv,
                       worker_environment(job_.inherited_environment, environment, local_rank)};
      spec.stdin_fd = i == 0 && may_read_stdin() ? 0 : null_.get();
      spec.stdout_fd = worker_ends_.back().out.get();
      spec.stderr_fd = worker_ends_.back().err.get();
      spec.inherited_fds = {segment_fd_.get()};
      plan_.workers.push_back(std::move(spec));
    }
    const int listener = job_.listener.fd.get();
    plan_.store = ProcessSpec{job_.store_path,
                              {job_.store_path, std::to_string(listener)},
                              job_.inherited_environment,
                              null_.get(),
                              null_.get(),
                              2,
                              {listener}};
    plan_.scratch_directory = environment.error_directory;
    plan_.worker_mask = signals_.original_mask();
    plan_.lockrun_fds = output_.read_ends();
  }

  void wait_and_handle() {
    std::vector<pollfd> polls = {{guardian_->fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    polls.push_back({store_started_ ? -1 : job_.listener.fd.get(), POLLIN, 0});
    const size_t first_output = polls.size();
    output_.add_polls(polls);
    double wait = output_.tick();
    if (kill_at_) {
      const double left = std::max(0.0, *kill_at_ - monotonic_seconds());
      wait = wait < 0 ? left : std::min(wait, left);
    }
    ::poll(polls.data(), polls.size(), wait < 0 ? -1 : static_cast<int>(std::min(wait, 3600.0) * 1000) + 1);
    if (polls[0].revents != 0) handle_events();
    if (polls[1].revents != 0) handle_signals();
    if (polls[2].revents != 0) {
      store_started_ = true;
      guardian_->send({Command::start_store, 0});
    }
    for (size_t i = first_output; i < polls.size(); ++i) {
      if (polls[i].revents != 0) output_.handle(polls[i]);
    }
    if (kill_at_ && monotonic_seconds() >= *kill_at_) kill_the_slow();
  }

  void handle_events() {
    while (const auto event = guardian_->receive()) {
      if (event->process == kStore) {
        handle_store(*event);
      } else {
        handle_worker(*event);
      }
      if (event->kind == Event::finished) {
        finished_ = true;
        if (event->status > 0) {
          output_.message(fmt::format("lockrun: ended {} left-over process{} that the ranks had started",
                                      event->status, event->status == 1 ? "" : "es"));
        }
        return;
      }
    }
    if (guardian_->gone()) {
      finished_ = true;
      fail("lockrun's guardian process was killed; all ranks have been ended with it");
    }
  }

  void handle_worker(const Event& event) {
    switch (event.kind) {
      case Event::started:
        workers_[static_cast<size_t>(event.process)].pid = event.pid;
        break;
      case Event::start_failed:
        fail("cannot execute " + job_.program.path + ": " + std::strerror(event.status) +
             (event.status == ENOEXEC ? "; a script needs a first line like #!/bin/sh" : ""));
        worker_gone();
        break;
      case Event::exited:
        handle_exit(workers_[static_cast<size_t>(event.process)], event);
        break;
      case Event::stopped:
        if (event.monotonic > resumed_at_ && !suspending_) warn_of_stop(event);
        break;
      case Event::continued:
      case Event::finished:
        break;
    }
  }

  void handle_exit(WorkerResult& worker, const Event& event) {
    segment_.mark_exited(event.process, event.status);
    worker.ended = true;
    worker.wait_status = event.status;
    worker.ended_after = event.monotonic - job_.started;
    worker.ended_at = wall_seconds();
    worker.told_to_end = kill_at_.has_value() && event.monotonic > told_at_;
    worker_gone();
    if (event.status == 0 || kill_at_) return;
    if (running_ > 0) {
      output_.message(fmt::format("lockrun: rank {} {}; ending the other ranks", worker.rank,
                                  shm::describe_wait_status(event.status)));
    }
    tell_to_end(SIGTERM);
  }

  void worker_gone() {
    if (--running_ > 0) return;
    kill_at_.reset();
    guardian_->send({Command::finish, 0});
  }

  void handle_store(const Event& event) {
    if (event.kind == Event::started) return;
    fail(event.kind == Event::start_failed
             ? "cannot start " + job_.store_path +
                   ", which serves MASTER_PORT: " + std::strerror(event.status)
             : "lockstep-store, which serves MASTER_PORT, " + shm::describe_wait_status(event.status));
  }

  void warn_of_stop(const Event& event) {
    const WorkerResult& worker = workers_[static_cast<size_t>(event.process)];
    output_.message(
        fmt::format("lockrun: warning: rank {} (pid {}) was stopped by {}; the others will wait for it "
                    "(kill -CONT {} continues it)",
                    worker.rank, event.pid, signal_name(event.status), event.pid));
  }

  void handle_signals() {
    while (const auto signal = signals_.receive()) {
      if (*signal == SIGUSR1 || *signal == SIGUSR2) {
        guardian_->send({Command::signal_workers, *signal});
      } else if (*signal == SIGTSTP) {
        suspend();
      } else {
        end_by(*signal);
      }
    }
  }

  void end_by(int signal) {
    if (kill_at_) {
      output_.message("lockrun: " + signal_name(signal) + " again; killing the ranks");
      guardian_->send({Command::signal_workers, SIGKILL});
      return;
    }
    if (running_ == 0) return;
    interrupted_by_ = signal;
    output_.message(fmt::format("lockrun: {} received and passed on; the ranks have {:g} s to end{}",
                                signal_name(signal), job_.options.shutdown_timeout,
                                signal == SIGINT ? " (Ctrl-C again kills them)" : ""));
    tell_to_end(signal);
  }

  /// Ctrl-Z: the ranks are in sessions of their own, so the terminal's signal reaches lockrun only.
  void suspend() {
    suspending_ = true;
    guardian_->send({Command::signal_workers, SIGSTOP});
    ::raise(SIGSTOP);
    suspending_ = false;
    resumed_at_ = monotonic_seconds();
    guardian_->send({Command::signal_workers, SIGCONT});
  }

  void tell_to_end(int signal) {
    if (running_ == 0) return;
    told_at_ = monotonic_seconds();
    kill_at_ = told_at_ + job_.options.shutdown_timeout;
    guardian_->send({Command::signal_workers, signal});
  }

  void kill_the_slow() {
    kill_at_ = monotonic_seconds() + 3600;
    std::string ranks;
    for (const WorkerResult& worker : workers_) {
      if (!worker.ended) ranks += (ranks.empty() ? "" : ", ") + std::to_string(worker.rank);
    }
    output_.message(fmt::format("lockrun: not ended within {:g} s, so killed: rank {}",
                                job_.options.shutdown_timeout, ranks));
    guardian_->send({Command::signal_workers, SIGKILL});
  }

  void fail(const std::string& error) {
    if (error_.empty()) error_ = error;
    if (!kill_at_) tell_to_end(SIGTERM);
  }

  AttemptResult result() {
    const auto first = first_failure(workers_);
    AttemptResult result{std::move(workers_), interrupted_by_, error_, {}};
    if (!first) return result;
    WorkerResult& culprit = result.workers[*first];
    const int local_rank = static_cast<int>(*first);
    culprit.last_operation = segment_.rank_info(local_rank).last_operation;
    culprit.stderr_tail = output_.stderr_tail(local_rank);
    try {
      culprit.error_message = error_file_message(read_file(error_file(job_.environment, local_rank)));
    } catch (const FileError&) {
      // Most programs write none.
    }
    result.report = failure_report(result.workers, *first, host_name());
    return result;
  }

  const Job& job_;
  Signals& signals_;
  UniqueFd segment_fd_;
  shm::Segment segment_;
  Output output_;
  UniqueFd null_;
  std::vector<WorkerResult> workers_;
  size_t running_;
  std::vector<WorkerOutput> worker_ends_;
  GuardianPlan plan_{};
  Guardian* guardian_ = nullptr;
  std::optional<double> kill_at_;  ///< set once the workers have been told to end
  double told_at_ = 0;
  double resumed_at_ = 0;
  bool suspending_ = false;
  bool store_started_ = false;
  bool finished_ = false;
  std::optional<int> interrupted_by_;
  std::string error_;
};

}  // namespace

AttemptResult run_attempt(const Job& job, Signals& signals) { return Attempt(job, signals).run(); }

}  // namespace lockstep::launcher
