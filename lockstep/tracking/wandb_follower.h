// The Python process that sends a run to Weights & Biases (wandb_follower.py).
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::detail {

/// The text of wandb_follower.py.
std::string_view wandb_follower_script();

/// The Python that runs it: PYTHON_EXEC, or python3 of PATH.
std::string follower_python();

/// A follower of one file. It has a session of its own, so that no Ctrl-C reaches it, and ends when its standard
/// input closes: with this object or with this process, however that ends. One thread at a time.
class WandbFollower {
 public:
  struct Options {
    std::filesystem::path script;  ///< wandb_follower.py
    std::filesystem::path lines;   ///< the file that it follows
    std::filesystem::path log;     ///< gets what the client prints
    double start_seconds = 60;     ///< how long start() waits for Python to import wandb
    double end_seconds = 60;       ///< how long finish() waits, and the follower for the client
  };

  /// Starts Python and blocks until it has imported wandb. Throws NotInstalledError if there is no Python or no
  /// wandb, Error if neither is known in time.
  explicit WandbFollower(Options options);
  /// Closes its input, and lets it end by itself.
  ~WandbFollower() = default;
  WandbFollower(const WandbFollower&) = delete;
  WandbFollower& operator=(const WandbFollower&) = delete;

  /// Why it has ended before its time; nothing while all is well. Prints what else it had to say. Does not block.
  std::optional<std::string> problem();
  /// Closes its input and waits until it has sent the rest. What finish() returns is as problem()'s. One that
  /// takes too long is killed.
  std::optional<std::string> finish();

 private:
  void spawn();
  void wait_until_ready();
  bool wait_for_words(double deadline);
  void read_words();
  void take_line(std::string_view line);
  std::string how_it_ended();
  void kill();

  Options options_;
  pid_t pid_ = -1;
  UniqueFd input_, words_;  // its standard input, which only ever closes; what it says
  std::string unread_{};
  bool is_ready_ = false, has_ended_ = false;
  std::string missing_{}, problem_{};
};

}  // namespace lockstep::detail
