#include "launcher/output/output.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launcher/output/line_prefix.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/given_flags.h"

namespace lockstep::launcher {
namespace {

/// A worker is read no further while this much waits for a slow reader.
constexpr size_t kBacklogLimit = size_t{1} << 20;
constexpr double kDrainSeconds = 5;

bool same_target(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}

bool open_pipe(UniqueFd& read_end, UniqueFd& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
  return true;
}

/// A pseudo-terminal of the size of terminal `like` that passes bytes on as they are.
bool open_pseudo_terminal(int like, UniqueFd& read_end, UniqueFd& write_end) {
  termios raw{};
  winsize size{};
  ::cfmakeraw(&raw);
  ::ioctl(like, TIOCGWINSZ, &size);
  int ends[2];
  if (::openpty(&ends[0], &ends[1], nullptr, &raw, &size) != 0) return false;
  for (const int fd : ends) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
  return true;
}

}  // namespace

Output::Output(int workers, int ranks, Prefix prefix, bool line_buffered, const LogOptions& logs,
               std::string directory)
    : out_(1),
      err_(2),
      nowhere_(-1),
      pseudo_terminal_(line_buffered && out_.terminal()),
      shared_(same_target(1, 2)),
      out_console_(out_, workers == 1 && resolve_prefix(prefix, logs, ranks, out_.terminal()) == Prefix::off),
      err_console_(err_, workers == 1 && resolve_prefix(prefix, logs, ranks, err_.terminal()) == Prefix::off),
      hidden_(nowhere_, false),
      ranks_(ranks),
      prefix_(prefix),
      logs_(logs),
      directory_(std::move(directory)),
      filtered_out_{logs.stdout_words},
      filtered_err_{logs.stderr_words} {
  for (const bool is_out : {true, false}) {
    Filtered& filtered = is_out ? filtered_out_ : filtered_err_;
    if (filtered.words.empty() || logs.none) continue;
    filtered.file =
        std::make_unique<LogFile>(directory_ + (is_out ? "/filtered_stdout.log" : "/filtered_stderr.log"));
  }
}

void Output::Filtered::take(int rank, std::string_view line) const {
  const auto holds = [&](const std::string& word) { return line.find(word) != line.npos; };
  if (std::none_of(words.begin(), words.end(), holds)) return;
  file->write(fmt::format("[rank {}]: {}\n", rank, line));
}

bool Output::on_console(int local_rank, int stream) const {
  const auto& shown = logs_.shown;
  if (!shown.empty() && std::find(shown.begin(), shown.end(), local_rank) == shown.end()) return false;
  // What is redirected and teed is teed, as torchrun has it.
  const size_t i = static_cast<size_t>(local_rank);
  return (logs_.redirects[i] & ~logs_.tee[i] & stream) == 0;
}

bool Output::shows_errors_of(int local_rank) const { return on_console(local_rank, kStderr); }

void Output::open_logs(Stream& stream, int local_rank, bool is_out) {
  const size_t i = static_cast<size_t>(local_rank);
  if (!logs_.none && ((logs_.redirects[i] | logs_.tee[i]) & (is_out ? kStdout : kStderr)) != 0) {
    stream.log = std::make_unique<LogFile>(
        fmt::format("{}/{}{}", directory_, local_rank, is_out ? "/stdout.log" : "/stderr.log"));
  }
  const Filtered& filtered = is_out ? filtered_out_ : filtered_err_;
  if (filtered.file) {
    const int rank = stream.source.rank;
    stream.source.on_line = [&filtered, rank](std::string_view line) { filtered.take(rank, line); };
  }
}

WorkerOutput Output::add_worker(int rank) {
  WorkerOutput ends;
  const int workers_so_far = static_cast<int>(streams_.size()) / 2;
  for (UniqueFd* write_end : {&ends.out, &ends.err}) {
    const bool is_out = write_end == &ends.out;
    Stream& stream = add_stream(is_out, *write_end, fmt::format("rank {}", rank));
    if (!on_console(workers_so_far, is_out ? kStdout : kStderr)) stream.console = &hidden_;
    stream.source.rank = rank;
    const Prefix prefix = resolve_prefix(prefix_, logs_, ranks_, stream.console->sink().terminal());
    stream.source.prefix = line_prefix(prefix, logs_, rank, workers_so_far);
    stream.source.may_be_live = workers_so_far == 0;
    open_logs(stream, workers_so_far, is_out);
  }
  return ends;
}

WorkerOutput Output::add_spare(int number) {
  WorkerOutput ends;
  for (UniqueFd* write_end : {&ends.out, &ends.err}) {
    Stream& stream = add_stream(write_end == &ends.out, *write_end, fmt::format("spare {}", number));
    stream.source.rank = -1;
    const bool is_off =
        resolve_prefix(prefix_, logs_, ranks_, stream.console->sink().terminal()) == Prefix::off;
    stream.source.prefix = is_off ? "" : fmt::format("[spare {}]: ", number);
  }
  return ends;
}

Output::Stream& Output::add_stream(bool is_out, UniqueFd& write_end, const std::string& whose) {
  auto stream = std::make_unique<Stream>();
  if (!(is_out && pseudo_terminal_ ? open_pseudo_terminal(1, stream->fd, write_end)
                                   : open_pipe(stream->fd, write_end))) {
    throw Error(
        fmt::format("cannot open the output of {}: {}; fewer ranks, or a higher limit of open files "
                    "(ulimit -n), would help",
                    whose, std::strerror(errno)));
  }
  ::fcntl(stream->fd.get(), F_SETFL, O_NONBLOCK);
  stream->console = is_out ? &out_console_ : &err_console();
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

std::vector<int> Output::read_ends() const {
  std::vector<int> fds;
  for (const auto& stream : streams_) fds.push_back(stream->fd.get());
  return fds;
}

void Output::message(std::string_view text) { err_console().message(with_given_names(std::string(text))); }

void Output::add_polls(PollSet& polls) {
  for (const auto& stream : streams_) {
    if (!stream->fd.valid() || stream->console->sink().backlog() >= kBacklogLimit) continue;
    polls.add(stream->fd.get(), POLLIN, [this, from = stream.get()] {
      read_some(*from);
      warn_of_what_cannot_be_written();
    });
  }
  for (Sink* sink : {&out_, &err_}) {
    if (sink->backlog() == 0) continue;
    polls.add(sink->fd(), POLLOUT, [this, sink] {
      sink->flush();
      warn_of_what_cannot_be_written();
    });
  }
}

bool Output::takes_more() const { return out_.backlog() < kBacklogLimit && err_.backlog() < kBacklogLimit; }

bool Output::read_some(Stream& stream) {
  static char buffer[size_t{1} << 16];
  const ssize_t size = ::read(stream.fd.get(), buffer, sizeof buffer);
  if (size > 0) {
    if (stream.log) stream.log->write({buffer, static_cast<size_t>(size)});
    stream.console->feed(stream.source, {buffer, static_cast<size_t>(size)}, monotonic_seconds());
    return true;
  }
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  stream.console->end(stream.source);
  stream.fd.reset();
  return false;
}

double Output::tick() {
  const double now = monotonic_seconds();
  bool waiting = false;
  for (const auto& stream : streams_) {
    if (!stream->source.may_be_live || !stream->console->sink().terminal()) continue;
    stream->console->show_prompt(stream->source, now);
    waiting |= stream->source.partial_since > now - kPromptDelay;
  }
  return waiting ? kPromptDelay : -1;
}

void Output::finish() {
  const double deadline = monotonic_seconds() + kDrainSeconds;
  read_rest([&](Sink& sink) { sink.drain(std::max(0.0, deadline - monotonic_seconds()), -1); });
}

void Output::finish(int stop_fd, const std::function<bool()>& stops) {
  bool is_stopped = false;
  read_rest([&](Sink& sink) {
    while (!is_stopped && sink.backlog() > 0) {
      sink.drain(-1, stop_fd);
      is_stopped = sink.backlog() > 0 && stops();
    }
  });
}

void Output::read_rest(const std::function<void(Sink&)>& drain) {
  for (const auto& stream : streams_) {
    while (stream->fd.valid() && read_some(*stream)) {
      if (stream->console->sink().backlog() >= kBacklogLimit) drain(stream->console->sink());
    }
    if (stream->fd.valid()) stream->console->end(stream->source);
    stream->fd.reset();
  }
  warn_of_what_cannot_be_written();
  drain(out_);
  drain(err_);
  if (out_.backlog() > 0 && !shared_) {
    message(fmt::format("lockrun: warning: nobody reads standard output; its last {} bytes are lost",
                        out_.backlog()));
  }
}

const std::deque<std::string>& Output::stderr_tail(int local_rank) const {
  return streams_[2 * static_cast<size_t>(local_rank) + 1]->source.tail;
}

void Output::warn_of(LogFile& log) {
  if (const auto error = log.take_error()) {
    message(fmt::format("lockrun: warning: the log file {}; the job goes on, and what belongs there is lost",
                        *error));
  }
}

void Output::warn_of_what_cannot_be_written() {
  for (const auto& stream : streams_) {
    if (stream->log) warn_of(*stream->log);
  }
  for (Filtered* filtered : {&filtered_out_, &filtered_err_}) {
    if (filtered->file) warn_of(*filtered->file);
  }
  if (out_.error() == 0 || warned_out_) return;
  warned_out_ = true;
  const std::string reason = out_.error() == EPIPE
                                 ? "was closed by its reader"
                                 : std::string("cannot be written: ") + std::strerror(out_.error());
  message(
      fmt::format("lockrun: warning: standard output {}; the job goes on, and what it prints there from "
                  "now on is lost",
                  reason));
}

}  // namespace lockstep::launcher
