// The errors that Lockstep throws. Every message names the thing that is wrong, what was expected and what to
// do.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Base of all errors thrown by Lockstep.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument, flag, option or environment variable has a value that cannot work (Python's ValueError).
class ValueError : public Error {
 public:
  using Error::Error;
};

/// A file or directory is missing, unreadable, malformed or cannot be written.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Ends a program whose error was already printed, here or by the rank that speaks for all. run_main prints
/// nothing and exits with `exit_code`.
class ReportedError : public Error {
 public:
  /// `exit_code`: the program's.
  ReportedError(const std::string& message, int exit_code) : Error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }  ///< with which run_main() ends the program

 private:
  int exit_code_;
};

/// Base of the failures of a collective. After one, the group refuses further work and repeats the first
/// cause.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A wait reached its deadline; the message names the operation and the ranks that did not come.
class TimeoutError : public CommError {
 public:
  /// `missing_ranks`: within the group, in order.
  explicit TimeoutError(const std::string& message, std::vector<int> missing_ranks = {})
      : CommError(message), missing_ranks_(std::move(missing_ranks)) {}
  /// Ranks, within the group, that did not come, in order; empty where the backend does not tell.
  const std::vector<int>& missing_ranks() const { return missing_ranks_; }

 private:
  std::vector<int> missing_ranks_;
};

/// What a PeerLostError knows beside its message.
struct PeerLoss {
  bool has_left = false;  ///< the peer left the group or the job itself; false: it died, or nothing is known
  bool quotes_call = false;  ///< the message says what a rank of the group had called
};

/// A peer died, or left the group, while others needed it.
class PeerLostError : public CommError {
 public:
  /// `rank`: within the group.
  PeerLostError(const std::string& message, int rank, PeerLoss loss = {})
      : CommError(message), rank_(rank), loss_(loss) {}
  /// Rank, within the group, of the peer that is gone.
  int rank() const { return rank_; }
  /// Returns how the peer was lost.
  const PeerLoss& loss() const { return loss_; }

 private:
  int rank_;
  PeerLoss loss_;
};

/// A rank has died and was replaced by a new process (`lockrun --max-replacements`) while this one waited for it.
/// lockstep::step(recovery, ...) deals with it; elsewhere nothing can.
class WorldChangedError : public CommError {
 public:
  /// `rank`: within the group; -1: not known.
  explicit WorldChangedError(const std::string& message, int rank = -1) : CommError(message), rank_(rank) {}
  /// Rank, within the group, that was replaced; -1 where it is not known.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// Ranks called different operations, or the same one with different dtype, size, root or operator.
class MismatchError : public CommError {
 public:
  using CommError::CommError;
};

/// A step (lockstep/step/step.h) failed on some rank, so it has failed on all of them: gradients are zero everywhere, and the
/// next step and other collectives work. On a rank that failed itself, its own exception is nested in this one.
class StepFailedError : public Error {
 public:
  /// `ranks`: those that failed first, within the step's group, in order; `place`: where the first of them was, such as
  /// "in the loss".
  explicit StepFailedError(const std::string& message, std::vector<int> ranks = {}, std::string place = "")
      : Error(message), ranks_(std::move(ranks)), place_(std::move(place)) {}
  /// Ranks, within the step's group, that failed by themselves, in order.
  const std::vector<int>& ranks() const { return ranks_; }
  /// Where the first of them was.
  const std::string& place() const { return place_; }

 private:
  std::vector<int> ranks_;
  std::string place_;
};

}  // namespace lockstep
