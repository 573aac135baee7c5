// Starting the ranks of a job from inside a program: torch.multiprocessing.spawn for C++.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

/// What a rank runs. `arguments`: a copy of what spawn() was given.
using SpawnFunction = void (*)(int rank, const nlohmann::json& arguments);

/// Makes a function known by a name, at namespace scope: `const lockstep::Spawnable kTrain("train", train);`
/// Every process of the program makes it known before main() starts.
class Spawnable {
 public:
  /// `name`: unique in the program. `function` must live as long as the program.
  Spawnable(const char* name, SpawnFunction function);
  const char* name() const { return name_; }  ///< as given

 private:
  const char* name_;
};

/// Options of spawn() and start_processes().
struct SpawnOptions {
  /// Between asking the other ranks to end (SIGTERM) and killing them, once one has failed.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// A rank failed: by an exception, whose message this carries, by its exit code or by a signal.
class SpawnError : public Error {
 public:
  /// For spawn(); `wait_status` as from waitpid.
  SpawnError(const std::string& message, int rank, int wait_status)
      : Error(message), rank_(rank), wait_status_(wait_status) {}
  int rank() const { return rank_; }                ///< the rank that failed first
  int wait_status() const { return wait_status_; }  ///< as from waitpid

 private:
  int rank_, wait_status_;
};

/// The processes of one spawn. Move-only; the destructor kills what still runs.
class SpawnContext {
 public:
  /// Takes over the processes.
  SpawnContext(SpawnContext&&) noexcept;
  ~SpawnContext();
  const std::vector<pid_t>& pids() const;  ///< by rank
  /// Waits until all ranks have ended well and returns true; false at the deadline. When one fails, ends the
  /// others and throws its SpawnError, as does every later call.
  bool join(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

 private:
  friend SpawnContext start_processes(const Spawnable&, int, const nlohmann::json&, SpawnOptions);
  struct State;
  explicit SpawnContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Runs `function` as `nprocs` new processes, ranks 0 to nprocs - 1 of a job of their own: init() in them
/// joins it. Each is a fresh start of this program (/proc/self/exe), not a copy, so it does not matter which
/// threads OpenMP, LibTorch or the program have started. In them, run_main() calls the function instead of
/// its body; a main() without run_main must begin with spawned_main(). Blocks until all have ended; when one
/// fails, ends the others and throws its SpawnError. The calling thread's end ends the ranks. Throws Error
/// where the program ignores SIGCHLD. May be called in a rank, which then starts a job of its own.
void spawn(const Spawnable& function, int nprocs, const nlohmann::json& arguments, SpawnOptions options = {});
/// Runs `function` without arguments and with default options.
void spawn(const Spawnable& function, int nprocs);

/// Starts the processes as spawn() does, without waiting for their end.
SpawnContext start_processes(const Spawnable& function, int nprocs, const nlohmann::json& arguments,
                             SpawnOptions options = {});

/// In a process that spawn() started: runs its function and returns the exit code. Elsewhere: nothing.
std::optional<int> spawned_main();

}  // namespace lockstep
