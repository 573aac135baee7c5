// The workers' standard output and error: pipes from them, lines to lockrun's own.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/output/console.h"
#include "launcher/output/log_file.h"
#include "launcher/output/sink.h"
#include "launcher/process/poll_set.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// The worker's ends of what carries its output.
struct WorkerOutput {
  UniqueFd out, err;
};

class Output {
 public:
  /// `workers`: how many will write, of `ranks` of the job, with logs as `logs` says below `directory`, which has a directory for
  /// each local rank. `line_buffered`: where standard output is a terminal the workers get a pseudo-terminal
  /// for it instead of a pipe, since C's and C++'s libraries keep back what is written to a pipe until 4 KiB
  /// are full. All descriptors that it opens are close-on-exec.
  Output(int workers, int ranks, Prefix prefix, bool line_buffered, const LogOptions& logs,
         std::string directory);

  /// Makes the channels of the next worker (in the order of ranks).
  WorkerOutput add_worker(int rank);
  /// Those of a spare, for what it says before it is a rank: always on the console, never in a log. After the workers.
  WorkerOutput add_spare(int number);
  std::vector<int> read_ends() const;

  /// Adds what it waits for.
  void add_polls(PollSet& polls);
  /// Shows prompts that have waited; returns in how many seconds it wants to be called again, or -1.
  double tick();
  /// To call when the workers are gone: reads what they left, and waits a few seconds for slow readers.
  void finish();
  /// Waits as long as it takes. `stops` is asked when `stop_fd` can be read, and reads it: true ends the wait.
  void finish(int stop_fd, const std::function<bool()>& stops);

  /// A line of lockrun's own, on standard error.
  void message(std::string_view text);
  /// Whole lines that another machine's lockrun has sent.
  void relay(bool is_error, std::string_view text) {
    (is_error ? err_console() : out_console_).message(text);
  }
  /// Whether the readers of standard output and error keep up.
  bool takes_more() const;
  /// Columns of the terminal that standard error is, or 0.
  int terminal_columns() const { return err_.terminal() ? err_.columns() : 0; }
  /// Its file, or empty.
  std::string terminal_name() const { return err_.terminal_name(); }
  /// Whether the local rank's standard error is shown, here and now.
  bool shows_errors_of(int local_rank) const;
  /// Last lines that the local rank wrote to standard error.
  const std::deque<std::string>& stderr_tail(int local_rank) const;

 private:
  struct Stream {
    UniqueFd fd;
    Console* console;
    LineSource source;
    std::unique_ptr<LogFile> log{};
  };
  /// Copies of the lines that hold one of some words.
  struct Filtered {
    const std::vector<std::string>& words;
    std::unique_ptr<LogFile> file{};
    void take(int rank, std::string_view line) const;
  };
  /// Opens the next channel; `whose`: for errors.
  Stream& add_stream(bool is_out, UniqueFd& write_end, const std::string& whose);
  void open_logs(Stream& stream, int local_rank, bool is_out);
  bool on_console(int local_rank, int stream) const;
  void warn_of(LogFile& log);
  Console& err_console() { return shared_ ? out_console_ : err_console_; }
  bool read_some(Stream& stream);
  /// What the workers left; `drain` waits for a slow reader.
  void read_rest(const std::function<void(Sink&)>& drain);
  void warn_of_what_cannot_be_written();

  Sink out_, err_, nowhere_;
  bool pseudo_terminal_;
  bool shared_;  ///< standard output and error are the same terminal, pipe or file
  Console out_console_, err_console_, hidden_;
  int ranks_;
  Prefix prefix_;
  const LogOptions& logs_;
  std::string directory_;
  Filtered filtered_out_, filtered_err_;
  bool warned_out_ = false;
  std::vector<std::unique_ptr<Stream>> streams_;  ///< two a worker: out, err
};

}  // namespace lockstep::launcher
