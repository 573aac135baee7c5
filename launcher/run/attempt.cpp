#include "launcher/run/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>
#include <utility>

#include "launcher/machines/agent.h"
#include "launcher/machines/hosts.h"
#include "launcher/output/event_log.h"
#include "launcher/output/log_file.h"
#include "launcher/process/limits.h"
#include "launcher/process/oom_watch.h"
#include "launcher/process/poll_set.h"
#include "launcher/run/asked_replacements.h"
#include "launcher/run/attempt_plan.h"
#include "launcher/run/held_end.h"
#include "launcher/run/passed_signals.h"
#include "launcher/run/replacements.h"
#include "launcher/run/spares.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/peer_probe.h"
#include "launcher/watch/stacks.h"
#include "launcher/watch/workers.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host_name.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/shm/memory_file.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/world_change.h"

namespace lockstep::launcher {
namespace {

bool may_replace(const Job& job) {
  // On several machines the rendezvous counts those of all.
  if (job.options.nodes.several()) return job.options.max_replacements > 0 && job.environment.world_size > 1;
  return job.replacements < job.options.max_replacements && job.options.nproc_per_node > 1;
}

/// So many more, as far as is known here.
int most_replacements(const Job& job) {
  if (!may_replace(job)) return 0;
  return job.options.max_replacements - (job.options.nodes.several() ? 0 : job.replacements);
}

/// `was_told`: another one has been refused before; becomes true.
void tell_refusal(Output& output, const WorkerResult& worker, const std::string& refusal, bool& was_told) {
  if (std::exchange(was_told, true)) return;
  output.message(
      fmt::format("lockrun: rank {} {} and is not replaced: {}", worker.rank, how_it_ended(worker), refusal));
}

std::string make_directories_of(const Job& job) {
  // Those that are not kept are the guardian's to make, so that it removes them however lockrun ends.
  for (int i = 0; i < job.options.nproc_per_node && job.options.logs.wanted(); ++i) {
    make_directories(rank_directory(job, i));
  }
  return attempt_directory(job);
}

/// Once for the whole job.
void note_substitute_memory(int segment_fd, Output& output) {
  static bool is_noted = false;
  if (is_noted || !shm::is_in_dev_shm(segment_fd)) return;
  is_noted = true;
  std::error_code error;
  const auto space = std::filesystem::space("/dev/shm", error);
  output.message(fmt::format(
      "lockrun: memfd_create is forbidden here, so the ranks share memory by a file without a name in /dev/shm, which has {} MiB "
      "left; a rank that needs more is killed by SIGBUS",
      error ? 0 : space.available >> 20));
}

/// Not before all ranks are there and each could be replaced: their own start goes first, and a spare that nobody can need
/// is not started.
void start_missing(Spares& spares, const Replacements& replacements, Guardian& guardian) {
  while (spares.has_missing(replacements.left()) && replacements.are_all_healable()) {
    guardian.send({Command::start_spare, 0, 0, spares.take_missing()});
  }
}

void take_in(const Event& event, Spares& spares, Output& output, EventLog& events) {
  JobEvent told{.event = "spare", .host = host_name(), .pid = event.pid, .spare = event.spare};
  std::string line;
  if (event.kind == Event::started) return spares.started(event.spare, event.pid, event.monotonic);
  if (event.kind == Event::spare_waits) {
    spares.waits(event.spare);
  } else if (event.kind == Event::exited) {
    const bool is_signal = WIFSIGNALED(event.status);
    told.event = "exit";
    told.code = is_signal ? std::nullopt : std::optional(WEXITSTATUS(event.status));
    told.signal = is_signal ? signal_name(WTERMSIG(event.status)) : "";
    line = spares.ended(event.spare, shm::describe_wait_status(event.status));
  } else if (event.kind == Event::start_failed) {
    told.event = "exit";
    told.pid.reset();
    told.reason = fmt::format("could not be started: {}", std::strerror(event.status));
    line = spares.ended(event.spare, told.reason);
  } else {
    return;
  }
  events.write(told);
  if (!line.empty()) output.message("lockrun: " + line);
}

constexpr const char* kIsReplaced = "a rank is just being replaced";

std::string in_seconds(double seconds) { return fmt::format("{:g} s", std::round(seconds * 100) / 100); }

std::string describe_wait(const HeldEnd& end) {
  return fmt::format("when it is back, after {} at most", in_seconds(end.longest()));
}

std::string on_this_machine(const std::string& failure) {
  return fmt::format("on {}: {}", host_name(), failure);
}

/// At once: what follows here must not look like the reason there.
void tell_the_others(const Job& job, const std::string& failure, int code = 1, uint32_t refused = 0) {
  if (job.agent != nullptr) job.agent->report_failure(on_this_machine(failure), code, refused);
}

bool was_ended_by(std::optional<int> signal, int wait_status) {
  return signal && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == *signal;
}

/// It was asked to, and nothing has failed.
bool was_stopped(int wait_status, const PassedSignals& passed) {
  return asks_to_be_resumed(wait_status) || passed.answered_by(wait_status) != 0;
}

/// One more of those that ask the ranks to end, while they are saving.
void note_signal(Output& output, int signal, double seconds_left) {
  output.message(fmt::format("lockrun: {} received; the ranks are ending and have {:.0f} s left{}",
                             signal_name(signal), std::max(0.0, seconds_left),
                             signal == SIGINT ? " (Ctrl-C again kills them)" : ""));
}

/// Whether the user has read of the error: a rank has printed it for all, where standard error is shown.
bool is_reported(const ErrorFile& error, const Job& job, const Output& output) {
  if (!error.reported_by) return false;
  const int local_rank = *error.reported_by - job.environment.rank;
  return local_rank < 0 || local_rank >= job.options.nproc_per_node || output.shows_errors_of(local_rank);
}

/// Takes the signals that come while slow readers read what the ranks have left. Is one of them to end the job? Then it is added to
/// `ending`.
bool are_asked_to_end(Signals& signals, const Options& options, std::vector<int>& ending) {
  bool is_asked = false;
  while (const auto signal = signals.receive()) {
    const SignalAction action = action_of(*signal, options.signals, false, {});
    if (action == SignalAction::suspend) ::raise(SIGSTOP);
    if (action != SignalAction::end) continue;
    is_asked = true;
    ending.push_back(*signal);
  }
  return is_asked;
}

/// Without processes or descriptors for it the job goes on.
void start(std::optional<PeerProbe>& probe, const std::vector<ProbeTarget>& targets, Agent& agent,
           Output& output) {
  try {
    probe.emplace(targets);
  } catch (const Error& error) {
    output.message(fmt::format("lockrun: warning: cannot try which machines are reached: {}", error.what()));
    agent.report_probed({});
  }
}

/// `rank` has come back: an event for each that has, with it.
void write(EventLog& events, const Replaced& rank, const std::vector<WorkerResult>& workers) {
  const auto first = static_cast<size_t>(rank.local_rank);
  for (size_t i = first; i < (rank.is_machine ? workers.size() : first + 1); ++i) {
    events.write({.event = "replace",
                  .host = host_name(),
                  .reason = rank.what,
                  .rank = workers[i].rank,
                  .pid = workers[i].pid,
                  .spare = rank.spare,
                  .step = rank.step,
                  .seconds = rank.seconds});
  }
}

/// With numbers no machine ever waits to take another one's place. Then ranks need not tell what they would need for that.
void note_that_no_machine_waits(const shm::Segment& segment) {
  for (int r = 0; r < segment.ranks(); ++r)
    segment.rank_record(r).outlives_machine.store(shm::kNoMachineWaits, std::memory_order_relaxed);
}

/// The ranks here are new, while those of the other machines go on. Returns what their machines were told.
message::Replace take_place_of_machine(const Job& job, const shm::Segment& segment,
                                       Replacements& replacements) {
  if (!replacements.wanted())
    throw Error("the ranks here cannot take the place of others without --max-replacements");
  replacements.begin_machine(job.lost, monotonic_seconds());
  for (int r = 0; r < segment.ranks(); ++r) segment.replace(r, job.epoch);
  return {.rank = job.environment.rank, .epoch = job.epoch, .what = job.lost, .machine = true};
}

class Attempt {
 public:
  Attempt(const Job& job, Signals& signals)
      : job_(job),
        signals_(signals),
        segment_fd_(shm::create_segment(job.options.nproc_per_node, 0, "lockstep", may_replace(job))),
        segment_(shm::Segment::map(segment_fd_.get())),
        output_(job.options.nproc_per_node, job.environment.world_size, job.options.prefix,
                !job.program.is_python, job.options.logs, make_directories_of(job)),
        null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
        hangs_(job.options.hang_timeout, job.options.end_hung, job.environment.rank,
               !job.options.nodes.several(),
               job.options.logs.wanted() ? attempt_directory(job) + "/stacks.txt" : ""),
        workers_(job.options.nproc_per_node, job.environment.rank),
        replacements_(most_replacements(job), segment_, job.options.nodes.several()),
        spares_(may_replace(job) ? job.options.spares : 0, replacements_.start_seconds()),
        end_(job.options.shutdown_timeout) {}

  AttemptResult run() {
    note_substitute_memory(segment_fd_.get(), output_);
    if (job_.options.nodes.numbered) note_that_no_machine_waits(segment_);
    if (job_.epoch > 0) change_ = take_place_of_machine(job_, segment_, replacements_);
    AttemptPlan plan = plan_attempt(job_, segment_fd_.get(), null_.get(), signals_.original_mask(),
                                    cgroup_.get(), output_, copies_, spares_.count());
    plan.guardian.may_replace = replacements_.wanted();
    Guardian guardian(plan.guardian);
    const HelpersEnd helpers{*this};
    plan.outputs.clear();  // the workers have them now
    plan.inputs.clear();
    guardian_ = &guardian;
    const job::LaunchEnvironment& told = job_.environment;
    job_.events->write({.event = "start",
                        .host = host_name(),
                        .first_rank = told.rank,
                        .ranks = told.local_world_size,
                        .world_size = told.world_size,
                        .restarts = told.restart_count});
    while (!finished_) wait_and_handle();
    // The other machines of a job wait for this one, so there it is not for as long as it takes.
    if (job_.agent == nullptr) {
      output_.finish(signals_.fd(),
                     [this] { return are_asked_to_end(signals_, job_.options, ending_signals_); });
    } else {
      output_.finish();
    }
    return result();
  }

 private:
  /// Before the guardian ends, and with it whatever still runs.
  struct HelpersEnd {
    ~HelpersEnd() {
      attempt.hangs_.end_stacks();
      attempt.probe_.reset();
    }
    Attempt& attempt;
  };

  /// Seconds until something is to be done without an event, or a negative number.
  double next_deadline() {
    double wait = output_.tick();
    const auto sooner = [&](double seconds) {
      if (seconds >= 0) wait = wait < 0 ? seconds : std::min(wait, seconds);
    };
    if (kill_at_) sooner(std::max(0.0, *kill_at_ - monotonic_seconds()));
    if (workers_.running() > 0) sooner(hangs_.interval());
    constexpr double kLookForReplaced = 0.02;
    const bool holds_end = end_.has_come() && !kill_at_;
    if (holds_end || passed_.any_wait() || replacements_.any_under_way() || !asked_.empty() ||
        (change_ && replacements_.is_meeting()))
      sooner(kLookForReplaced);
    constexpr double kLookForSpares = 0.1;
    if (!kill_at_ && spares_.has_missing(replacements_.left())) sooner(kLookForSpares);
    if (job_.agent != nullptr) sooner(job_.agent->tick());
    return wait;
  }

  void wait_and_handle() {
    PollSet polls;
    polls.add(guardian_->fd(), POLLIN, [this] { handle_events(); });
    polls.add(signals_.fd(), POLLIN, [this] { handle_signals(); });
    if (!store_started_) polls.add(job_.listener.fd.get(), POLLIN, [this] { start_store(); });
    if (job_.agent != nullptr) polls.add(job_.agent->fd(), POLLIN, [] {});  // handle_peers() reads
    polls.add(hangs_.fd(), POLLIN, [this] { finish_hang(); });
    polls.add(probe_ ? probe_->fd() : -1, POLLIN, [this] {
      if (!probe_->read_some()) return;
      job_.agent->report_probed(probe_->unreached());
      probe_.reset();
    });
    // A stopped guardian tells of no exit.
    for (UniqueFd& ended : pidfds_) {
      polls.add(ended.get(), POLLIN, [this, &ended] {
        ended.reset();
        guardian_->wake();
      });
    }
    if (job_.hosts != nullptr && output_.takes_more()) {
      job_.hosts->add_polls(polls,
                            [this](bool is_error, std::string_view text) { output_.relay(is_error, text); });
    }
    copies_.add_polls(polls);
    output_.add_polls(polls);
    polls.wait(next_deadline());
    if (held_signal_ && told_at_ == 0 && workers_.running() > 0) end_by(*held_signal_);
    pass_on();
    if (job_.agent != nullptr) {
      handle_peers();  // silence says something too
      handle_changes();
    }
    if (kill_at_ && monotonic_seconds() >= *kill_at_) kill_the_slow();
    look_for_replaced();
    if (!kill_at_ && workers_.running() > 0) {
      start_missing(spares_, replacements_, *guardian_);
      const bool looked = hangs_.look(segment_, workers_.results(), output_);
      if (looked && job_.agent != nullptr) job_.agent->report_quiet(hangs_.quiet());
      if (hangs_.has_told_all()) finish_hang();
      if (const std::string hang = hangs_.take_told(); looked && !hang.empty()) {
        job_.events->write({.event = "hang", .host = host_name(), .reason = hang});
      }
    }
  }

  void look_for_replaced() {
    const bool was_told = told_at_ > 0;  // to end
    if (!was_told && change_) {
      // Over machines nobody else sees it if a rank does not come.
      const std::string deserter = replacements_.find_deserter(workers_.results(), monotonic_seconds());
      if (!deserter.empty()) return give_up(deserter);
    }
    if (!replacements_.any_under_way()) return;
    const double now = monotonic_seconds();
    for (const Replaced& rank : replacements_.take_done(now)) {
      output_.message("lockrun: " + rank.line());
      write(*job_.events, rank, workers_.results());
    }
    if (was_told) return;
    if (const auto late = replacements_.find_late(now)) {
      hung_ = *late;
      tell_the_others(job_, hung_, change_ ? change_->code : 1);
      output_.message(fmt::format("lockrun: {}; ending all ranks", *late));
      tell_to_end(SIGTERM, Why::failure);
    }
  }

  /// On several machines: the ranks here do not go on with a new process. The job's exit code is that of the rank that died.
  void give_up(const std::string& why) {
    const message::Replace change = *std::exchange(change_, std::nullopt);
    hung_ = fmt::format("{} and is not replaced: {}", change.what, why);
    tell_the_others(job_, hung_, change.code, change.epoch);
    output_.message(fmt::format("lockrun: {}; ending all ranks", hung_));
    tell_to_end(SIGTERM, Why::failure);
  }

  /// The others go on, and a new process takes the place of the one that has ended.
  bool replace(const Event& event) {
    if (!replacements_.wanted() || event.status == 0 || kill_at_ || was_stopped(event.status, passed_))
      return false;
    // Schedulers send it to each process. The others wait for one that had no handler yet, to save with it.
    const bool was_sent_to_all = passed_.have_ended(event.status) || was_ended_by(held_signal_, event.status);
    if (was_sent_to_all && !replacements_.is_new(event.process)) return false;
    WorkerResult worker = workers_.of(event);
    worker.wait_status = event.status;
    const std::string refusal = replacements_.refusal(event.process, workers_.results());
    if (!refusal.empty()) {
      tell_refusal(output_, worker, refusal, has_refused_);
      return false;
    }
    look_for_replaced();  // this rank may have come back, and died again, since the last look
    if (job_.agent == nullptr) {
      start_again(event, 0);
      return true;
    }
    asked_.add(event, worker.rank, monotonic_seconds());
    job_.agent->ask_to_replace(
        {worker.rank, fmt::format("rank {} on {} {}", worker.rank, host_name(), how_it_ended(worker)),
         exit_code(event.status)});
    return true;
  }

  /// On several machines: what the rendezvous says of ranks that have died.
  void handle_changes() {
    const auto kept = job_.agent->take_kept();
    for (const message::Replace& change : job_.agent->take_replaced()) {
      if (told_at_ > 0) {
        const int local_rank = change.rank - job_.environment.rank;
        // One that has died here gets no new process any more. Ranks that were asked to save do so with that of another machine.
        if (why_ == Why::failure || (local_rank >= 0 && local_rank < job_.options.nproc_per_node)) continue;
        const std::string why = replacements_.problem_here(workers_.results(), change.machine);
        if (why.empty())
          segment_.begin_epoch(change.epoch);
        else
          tell_the_others(job_, fmt::format("{} and is not replaced: {}", change.what, why), change.code,
                          change.epoch);
        continue;
      }
      hangs_.forgive(monotonic_seconds());
      job_.agent->report_quiet(std::nullopt);
      change_ = change;
      if (const auto death = asked_.take(change.rank)) {
        start_again(*death, change.epoch);
      } else if (const std::string why = replacements_.problem_here(workers_.results(), change.machine);
                 !why.empty()) {
        give_up(why);
      } else {
        segment_.begin_epoch(change.epoch);
        if (change.machine && job_.environment.group_rank == 0)
          output_.message(fmt::format("lockrun: {}; a spare machine takes its place", change.what));
      }
    }
    for (const auto& [death, reason] : asked_.take_refused(kept, told_at_ > 0, monotonic_seconds())) {
      if (!kill_at_) {
        WorkerResult worker = workers_.of(death);
        worker.wait_status = death.status;
        tell_refusal(output_, worker, reason, has_refused_);
      }
      conclude_exit(death);
    }
  }

  /// `epoch`: the one that begins on all machines; 0: there is one machine.
  void start_again(const Event& event, uint32_t epoch) {
    WorkerResult worker = workers_.of(event);
    worker.wait_status = event.status;
    replacements_.begin(worker, event.process, monotonic_seconds());
    ::unlink(error_file(job_, event.process).c_str());
    workers_.start_again(event.process);
    segment_.replace(event.process, epoch);
    const auto spare = spares_.take(monotonic_seconds());
    guardian_->send({Command::replace_worker, 0, event.process, spare.value_or(kNoSpare)});
    hangs_.forgive(monotonic_seconds());
  }

  /// Is a rank being replaced, here or elsewhere, or back but for its handler of `signal`?
  bool is_replacing(int signal) const {
    if (job_.agent != nullptr && job_.agent->has_changes()) return true;
    if (!asked_.empty() || replacements_.any_under_way() || (change_ && replacements_.is_meeting()))
      return true;
    return replacements_.any_new(workers_.results(), [&](pid_t pid) { return catches(pid, signal); });
  }

  void start_store() {
    // Ranks meet at the first machine. At the others it is a machine that tries whether it reaches this one.
    if (job_.environment.group_rank != 0) {
      const UniqueFd visitor(::accept4(job_.listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return;
    }
    store_started_ = true;
    guardian_->send({Command::start_store, 0});
  }

  void finish_hang() {
    if (hangs_.fd() >= 0) hangs_.take_stacks(output_);
    warn_of_stops();
    if (!hangs_.has_told_all() || kill_at_ || workers_.running() == 0) return;
    hung_ = hangs_.end_reason();
    if (hung_ == jobs_hang_) {
      job_.agent->report_failure(hung_, 1);
    } else {
      tell_the_others(job_, hung_);
    }
    tell_to_end(SIGTERM, Why::failure);
  }

  void handle_peers() {
    const auto reason = job_.agent->take_end_request();
    const auto hang = job_.agent->take_hang();
    if (workers_.running() == 0) return;
    if (kill_at_) {
      if (!reason || !saves_for_peers_ || !job_.agent->interrupts_saving()) return;
      // What the ranks here wait for while they save does not come any more.
      saves_for_peers_ = false;
      why_ = Why::failure;
      output_.message(fmt::format("lockrun: {}; the ranks here end without saving", *reason));
      told_.push_back(*reason);
      guardian_->send({Command::signal_workers, SIGTERM, job::kPeerHasFailed});
      return;
    }
    if (hang) tell_of_hang(*hang);
    if (const auto targets = job_.agent->take_probe()) start(probe_, *targets, *job_.agent, output_);
    if (!reason) return;
    const double now = monotonic_seconds();
    const bool is_new = !end_.has_come();
    if (job_.agent->ends_to_resume() && end_.waits(is_replacing(SIGTERM), now)) {
      if (is_new)
        output_.message(fmt::format("lockrun: {}; {}, so the ranks here are asked to save and end {}",
                                    *reason, kIsReplaced, describe_wait(end_)));
      return;
    }
    ended_by_peers_ = true;
    saves_for_peers_ = job_.agent->ends_to_resume();
    output_.message(saves_for_peers_ ? fmt::format("lockrun: {}; the ranks here have {} to save and end",
                                                   *reason, in_seconds(end_.deadline(now) - now))
                                     : fmt::format("lockrun: {}; ending the ranks here", *reason));
    told_.push_back(*reason);
    tell_to_end(SIGTERM, saves_for_peers_ ? Why::resume : Why::failure);
  }

  /// A hang of ranks of several machines. Where one console shows what all say, only one says it.
  void tell_of_hang(const message::Hang& hang) {
    const bool one_console = job_.options.assigned || job_.hosts != nullptr;
    jobs_hang_ = hang.text;
    hangs_.tell(hang.text, hang.is_culprit || !one_console, hang.is_culprit, segment_, workers_.results(),
                output_);
  }

  void handle_events() {
    while (const auto event = guardian_->receive()) {
      if (event->process == kStore) {
        handle_store(*event);
      } else if (event->process == kSpareProcess) {
        take_in(*event, spares_, output_, *job_.events);
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
        workers_.started(event);
        if (event.spare != kNoSpare) replacements_.note_spare(event.process, event.spare);
        pidfds_.push_back(job::open_pidfd(event.pid));
        break;
      case Event::start_failed:
        fail(event.pid < 0
                 ? fmt::format("rank {} could not be started: {}", workers_.of(event).rank,
                               describe_fork_failure(event.status))
                 : fmt::format(
                       "cannot execute {}: {}{}", job_.program.path, std::strerror(event.status),
                       (event.status == ENOEXEC ? "; a script needs a first line like #!/bin/sh" : "")));
        workers_.not_started();
        finish_if_none_runs();
        break;
      case Event::no_directory:
        fail(fmt::format("cannot create the directory {}: {}; TMPDIR names another place for it",
                         job_.scratch_directory, std::strerror(event.status)));
        workers_.none_started();
        finish_if_none_runs();
        break;
      case Event::exited:
        handle_exit(event);
        break;
      case Event::stopped:
        if (event.monotonic > resumed_at_ && !suspending_) stopped_.push_back(event);
        warn_of_stops();
        break;
      case Event::continued:
      case Event::spare_waits:
      case Event::finished:
        break;
    }
  }

  void handle_exit(const Event& event) {
    const bool may_be_the_kernel =
        WIFSIGNALED(event.status) && WTERMSIG(event.status) == SIGKILL && !kill_at_;
    workers_.set_killed_for(event, may_be_the_kernel ? oom_.reason(event.pid) : "");
    const bool is_signal = WIFSIGNALED(event.status);
    job_.events->write({.event = "exit",
                        .host = host_name(),
                        .rank = workers_.of(event).rank,
                        .pid = event.pid,
                        .code = is_signal ? std::nullopt : std::optional(WEXITSTATUS(event.status)),
                        .signal = is_signal ? signal_name(WTERMSIG(event.status)) : ""});
    if (!replace(event)) conclude_exit(event);
  }

  /// A rank has ended, and nobody takes its place.
  void conclude_exit(const Event& event) {
    segment_.mark_exited(event.process, event.status);
    const bool asked = kill_at_ && event.monotonic > told_at_;
    const bool consequence = asked && !(why_ == Why::resume && ended_by_itself(event.status, SIGTERM));
    const WorkerResult& worker =
        workers_.ended(event, consequence, passed_.have_ended(event.status), job_.started);
    finish_if_none_runs();
    if (event.status == 0 || consequence) return;
    if (was_stopped(event.status, passed_)) return resume_later(worker);
    if (kill_at_ && why_ != Why::resume) return;
    const std::string what = fmt::format("rank {} on {} {}", worker.rank, host_name(), how_it_ended(worker));
    if ((workers_.running() > 0 || job_.agent != nullptr) &&
        !is_reported(read_error_file(error_file(job_, event.process)), job_, output_)) {
      output_.message(
          fmt::format("lockrun: rank {} {}; ending the other ranks", worker.rank, how_it_ended(worker)));
      told_.push_back(what);
    }
    if (job_.agent != nullptr) job_.agent->report_failure(what, exit_code(event.status));
    why_ = Why::failure;
    tell_to_end(SIGTERM, Why::failure);
  }

  void resume_later(const WorkerResult& worker) {
    if (answered_ == 0) answered_ = passed_.answered_by(worker.wait_status);
    if (kill_at_) return;
    // The ranks have agreed on the end, by those that were asked on other machines.
    if (end_.has_come()) return end_.release();
    if (workers_.running() > 0) {
      const std::string why =
          answered_ != 0
              ? fmt::format("{} after {}", how_it_ended(worker), signal_name(answered_))
              : fmt::format("ended with exit code {}, so the job is to be resumed later", kResumeCode);
      output_.message(fmt::format("lockrun: rank {} {}; the other ranks have {:g} s to end", worker.rank, why,
                                  job_.options.shutdown_timeout));
    }
    if (job_.agent != nullptr) job_.agent->report_resume();
    tell_to_end(SIGTERM, Why::resume);
  }

  void finish_if_none_runs() {
    if (workers_.running() > 0) return;
    kill_at_.reset();
    guardian_->send({Command::finish, 0});
  }

  void handle_store(const Event& event) {
    if (event.kind != Event::exited && event.kind != Event::start_failed) return;
    fail(event.kind == Event::start_failed
             ? fmt::format("cannot start {}, which serves MASTER_PORT: {}", job_.store_path,
                           std::strerror(event.status))
             : "lockstep-store, which serves MASTER_PORT, " + shm::describe_wait_status(event.status));
  }

  /// A tool that reads the stacks of ranks may stop one for a moment.
  void warn_of_stops() {
    if (hangs_.fd() >= 0) return;
    for (const Event& event : std::exchange(stopped_, {})) {
      if (!is_stopped(event.pid)) continue;
      output_.message(
          fmt::format("lockrun: warning: rank {} (pid {}) was stopped by {}; the others will wait for it "
                      "(kill -CONT {} continues it)",
                      workers_.of(event).rank, event.pid, signal_name(event.status), event.pid));
    }
  }

  void handle_signals() {
    while (const auto signal = signals_.receive()) {
      if (job_.hosts != nullptr) job_.hosts->pass_on(*signal);
      SignalAction action = action_of(*signal, job_.options.signals, kill_at_.has_value(), ending_signals_);
      if (action == SignalAction::end && held_signal_ && workers_.running() > 0) {  // somebody insists
        end_.release();
        end_by(*held_signal_);
        action = SignalAction::note;  // the ranks have just been asked, and may save
      }
      switch (action) {
        case SignalAction::end:
          end_by(*signal);
          break;
        case SignalAction::kill:
          output_.message("lockrun: SIGINT again; killing the ranks");
          guardian_->send({Command::signal_workers, SIGKILL});
          break;
        case SignalAction::note:
          if (std::find(ending_signals_.begin(), ending_signals_.end(), *signal) == ending_signals_.end())
            note_signal(output_, *signal, *kill_at_ - monotonic_seconds());
          break;
        case SignalAction::pass_on:
          if (!passed_.add(*signal)) break;
          pass_on();
          if (passed_.waits(*signal))
            output_.message(fmt::format("lockrun: {} received; {}, so it is passed on when it is back",
                                        signal_name(*signal), kIsReplaced));
          break;
        case SignalAction::suspend:
          suspend();
          break;
      }
      if (action == SignalAction::end || action == SignalAction::note) ending_signals_.push_back(*signal);
    }
  }

  void end_by(int signal) {
    const double now = monotonic_seconds();
    if (workers_.running() > 0 && end_.waits(is_replacing(signal), now)) {
      if (!std::exchange(held_signal_, signal))
        output_.message(
            fmt::format("lockrun: {} received; {}, so it is passed on {} (a second signal: at once)",
                        signal_name(signal), kIsReplaced, describe_wait(end_)));
      return;
    }
    was_incomplete_ = is_replacing(signal);
    held_signal_.reset();
    interrupted_by_ = signal;  // no restart follows, even if it comes when all have ended
    if (workers_.running() == 0) {
      if (signal != SIGINT) return;
      output_.message("lockrun: SIGINT received; killing what the ranks have left behind");
      guardian_->send({Command::finish, 0});
      return;
    }
    output_.message(fmt::format("lockrun: {} received and passed on; the ranks have {} to end{}",
                                signal_name(signal), in_seconds(end_.deadline(now) - now),
                                signal == SIGINT ? " (Ctrl-C again kills them)" : ""));
    if (job_.agent != nullptr) {
      job_.agent->announce_leave(signal);
      saves_for_peers_ = true;
    }
    tell_to_end(signal, Why::request);
  }

  /// SIGUSR1, SIGUSR2: once each rank may have its handler. No rank is waited for when all end.
  void pass_on() {
    for (const int signal : passed_.take_due([&](int each) { return !kill_at_ && is_replacing(each); }))
      guardian_->send({Command::signal_workers, signal});
  }

  /// Ctrl-Z: the ranks are in the guardian's session, so the terminal's signal reaches lockrun only.
  void suspend() {
    suspending_ = true;
    guardian_->send({Command::signal_workers, SIGSTOP});
    if (job_.agent != nullptr) job_.agent->suspended();
    ::raise(SIGSTOP);
    suspending_ = false;
    resumed_at_ = monotonic_seconds();
    hangs_.forgive(resumed_at_);
    if (job_.agent != nullptr) job_.agent->resumed();
    if (job_.hosts != nullptr) job_.hosts->pass_on(SIGCONT);
    guardian_->send({Command::signal_workers, SIGCONT});
  }

  enum class Why {
    failure,  ///< of a rank, of lockrun or elsewhere
    request,  ///< a signal that lockrun received
    resume,   ///< a rank has ended with kResumeCode
  };

  void tell_to_end(int signal, Why why) {
    if (workers_.running() == 0 || kill_at_) return;
    why_ = why;
    told_at_ = monotonic_seconds();
    kill_at_ = end_.deadline(told_at_);
    if (job_.agent != nullptr) job_.agent->report_quiet(std::nullopt);
    guardian_->send({Command::signal_workers, signal, why == Why::failure ? job::kPeerHasFailed : 0});
  }

  void kill_the_slow() {
    // One may wait for a device or a file server, where no signal reaches it, and come back.
    constexpr double kRemindEvery = 60, kMost = 600;
    const double now = monotonic_seconds();
    const double since = killed_at_ > 0 ? now - killed_at_ : 0;
    kill_at_ = now + kRemindEvery;
    if (killed_at_ == 0) {
      killed_at_ = now;
      output_.message(fmt::format("lockrun: not ended within {:g} s, so killed: rank {}",
                                  job_.options.shutdown_timeout, workers_.running_ranks()));
    } else if (since < kMost) {
      output_.message(fmt::format("lockrun: {:.0f} s after SIGKILL there still runs rank {}", since,
                                  workers_.running_ranks()));
    } else {
      error_ = fmt::format("{:.0f} s after SIGKILL there still runs rank {}, which is left behind", since,
                           workers_.running_ranks());
      tell_the_others(job_, error_);
      finished_ = true;
      return;
    }
    guardian_->send({Command::signal_workers, SIGKILL});
  }

  void fail(const std::string& error) {
    if (error_.empty()) error_ = error;
    tell_the_others(job_, error);
    tell_to_end(SIGTERM, Why::failure);
  }

  AttemptResult result() {
    look_for_replaced();  // of a process that has ended soon after it took another one's place
    std::vector<WorkerResult> workers = workers_.take_results();
    for (size_t i = 0; i < workers.size(); ++i) {
      if (workers[i].wait_status != 0)
        workers[i].error_message = read_error_file(error_file(job_, static_cast<int>(i))).message;
    }
    const auto first = first_failure(workers);
    // A request that nobody was told of says nothing of ranks that have all ended well.
    const bool all_well = std::all_of(workers.begin(), workers.end(),
                                      [](const WorkerResult& worker) { return worker.wait_status == 0; });
    if (held_signal_ && (!all_well || told_at_ > 0)) interrupted_by_ = held_signal_;
    AttemptResult result{std::move(workers), interrupted_by_, ended_by_peers_, hung_, error_};
    result.told = told_;
    if (!hung_.empty())
      result.told.insert(result.told.end(), {hung_, on_this_machine(hung_)});  // the warning
    if (!error_.empty()) result.told.push_back(on_this_machine(error_));
    if (answered_ != 0) result.asked_to_end = answered_;
    if (!ending_signals_.empty()) result.asked_to_end = ending_signals_.front();
    for (size_t i = 0; i < result.workers.size(); ++i) {
      const shm::RankInfo info = segment_.rank_info(static_cast<int>(i));
      // A rank alone does its work without a collective.
      result.workers[i].joined = info.pid != 0 && job_.environment.world_size > 1;
      result.workers[i].last_operation = info.last_operation;
    }
    result.was_incomplete = was_incomplete_;
    result.replacements = replacements_.count();
    result.replaced = replacements_.summary();
    if (!first && error_.empty() && ending_signals_.empty()) result.complaint = spares_.find_complaint();
    if (!first) return result;
    WorkerResult& culprit = result.workers[*first];
    const int local_rank = static_cast<int>(*first);
    const ErrorFile error = read_error_file(error_file(job_, local_rank));
    if (is_reported(error, job_, output_)) return result;
    culprit.stderr_tail = output_.stderr_tail(local_rank);
    culprit.stderr_shown = output_.shows_errors_of(local_rank);
    if (!error.message.empty() && job_.options.logs.wanted())
      culprit.error_file = error_file(job_, local_rank);
    result.report = failure_report(result.workers, *first, host_name());
    return result;
  }

  const Job& job_;
  Signals& signals_;
  UniqueFd segment_fd_;
  shm::Segment segment_;
  Output output_;
  // One for each attempt: the kernel kills what is started into a group that was killed before.
  const std::unique_ptr<JobCgroup> cgroup_ = JobCgroup::make();
  StdinCopies copies_;
  UniqueFd null_;
  HangReport hangs_;
  std::optional<PeerProbe> probe_;
  Workers workers_;
  Replacements replacements_;
  Spares spares_;
  OomWatch oom_;
  AskedReplacements asked_;
  std::optional<message::Replace> change_;  ///< the last one, on several machines
  bool has_refused_ = false;
  bool was_incomplete_ = false;
  HeldEnd end_;
  std::optional<int> held_signal_;  ///< the request that waits, if a signal is it
  Guardian* guardian_ = nullptr;
  std::optional<double> kill_at_;  ///< set once the workers have been told to end
  double told_at_ = 0;             ///< when that was; 0: they have not
  Why why_ = Why::failure;
  std::vector<int> ending_signals_;  ///< that have come
  PassedSignals passed_;             ///< the other signals that have
  int answered_ = 0;                 ///< one of these, by which a rank was stopped; 0: none
  std::deque<UniqueFd> pidfds_;      ///< of the running workers; a handler refers to its element
  std::vector<Event> stopped_;       ///< ranks, not told of yet
  double resumed_at_ = 0;
  bool suspending_ = false;
  bool store_started_ = false;
  double killed_at_ = 0;  ///< those that did not end in time; 0: not yet
  bool finished_ = false;
  bool ended_by_peers_ = false;
  bool saves_for_peers_ = false;  ///< until another machine fails
  std::optional<int> interrupted_by_;
  std::string jobs_hang_;  ///< of ranks of several machines, as the rendezvous has told it
  std::string hung_;       ///< why --hang-action end has ended the ranks
  std::string error_;
  std::vector<std::string> told_;  ///< as in AttemptResult
};

}  // namespace

AttemptResult run_attempt(const Job& job, Signals& signals) { return Attempt(job, signals).run(); }

}  // namespace lockstep::launcher
