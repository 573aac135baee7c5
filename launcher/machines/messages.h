// What machines and their rendezvous tell each other: JSON objects with a "type". They are worded here only,
// for both sides. Pure.
//
// Anything may come from outside: texts are cut and cleaned when they are read, numbers brought into their
// range, and what is missing or of another kind has its default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/shm/segment.h"

namespace lockstep::launcher::message {

// From a machine.

/// It wants to take part, now or again.
struct Join {
  static constexpr std::string_view kType = "join";
  std::string id{};  ///< the same on another connection
  std::string run_id{}, host{}, address{};
  int store_port = 0, nproc = 0;
  int min = 0, max = 0;  ///< --nnodes
  int node_rank = -1;    ///< static only
  bool serves = false;   ///< the rendezvous, if it has to
  bool serving = false;  ///< this one
  // These describe the last round in which it took part, with another rendezvous perhaps; 0: there was none.
  int round = 0, machines = 0, restarts = 0;
  bool server_is_gone = false;  ///< the one that served certainly does not any more
  bool same_place = false;      ///< it served where this one does
  std::string instance{};       ///< of the rendezvous there
  /// Some of its ranks were ended by the request to save and stop: the program has no handler for it.
  bool saved_nothing = false;
  bool refused = false;      ///< its ranks ended as after a mistake in the command line
  bool untouched = false;    ///< its ranks took part in no collective
  bool replaces = false;     ///< as a spare, it may take a lost machine's place while the others go on
  bool has_no_vote = false;  ///< as in Start
  std::string command{};     ///< what it starts, for people
};

/// From another rendezvous: whether this one is open, and for the same job. The answer is Yes or none.
struct Ask {
  static constexpr std::string_view kType = "ask";
  std::string run_id{}, instance{};
};

/// Its ranks are ending.
struct Failed {
  static constexpr std::string_view kType = "failed";
  std::string what{};
  int code = 1;
  uint32_t refused =
      0;  ///< the epoch of Replace in which the ranks here do not go on, so that nobody is replaced
};

/// A rank has ended with kResumeCode.
struct Resume {
  static constexpr std::string_view kType = "resume";
};

struct Succeeded {
  static constexpr std::string_view kType = "succeeded";
};

/// It was told to leave (a signal): the job is to save its work first. Its ranks have been asked to stop.
struct Leaving {
  static constexpr std::string_view kType = "leaving";
  int signal = 0;
};

/// It takes part no more; its ranks have ended.
struct Leave {
  static constexpr std::string_view kType = "leave";
  int code = 1;
  bool saved_nothing = false;  ///< as in Join
};

/// No rank there makes progress, and there is no hang among them.
struct Quiet {
  static constexpr std::string_view kType = "quiet";
  double seconds = 0;                  ///< so far
  std::vector<shm::RankInfo> ranks{};  ///< of the machine; state, operations, waits and last_operation
};

/// After Quiet: they go on, or are ending.
struct Progress {
  static constexpr std::string_view kType = "progress";
};

/// A rank there has died: may it be replaced while the others go on? The answer is Replace to all machines of the round, or
/// Kept to this one.
struct Died {
  static constexpr std::string_view kType = "died";
  int rank = 0;        ///< of the job
  std::string what{};  ///< "rank 3 on first was killed by SIGKILL"
  int code = 1;        ///< the job's, if the rank is not replaced
};

/// The answer to Probe.
struct Probed {
  static constexpr std::string_view kType = "probed";
  std::vector<int> unreached{};  ///< group ranks of the machines that this one does not reach
};

/// It is silent from now on, for a while.
struct Pause {
  static constexpr std::string_view kType = "pause";
};

/// A sign of life, both ways.
struct Beat {
  static constexpr std::string_view kType = "beat";
};

// To a machine.

/// Who is there while machines are waited for.
struct Status {
  static constexpr std::string_view kType = "status";
  std::vector<std::string> here{};
  int least = 1, most = 1;
  int count = 0;                       ///< of machines that are here; `here` may be cut
  std::vector<std::string> missing{};  ///< their --node-rank, if machines have one
  int ending = 0;                      ///< machines on which ranks of the last round still run
};

/// A machine that may serve the rendezvous when the one that does is lost.
struct Heir {
  std::string id{}, address{};
};

/// A round begins: what it gives to this machine.
struct Start {
  static constexpr std::string_view kType = "start";
  int round = 1;
  int restarts = 0;
  int group_rank = 0, groups = 1;
  int first_rank = 0, world_size = 1;
  std::string master_addr{};
  uint16_t master_port = 0;
  std::string instance{};  ///< of the rendezvous
  std::vector<Heir> heirs{};
  std::string warning{};  ///< to show
  // For a machine that takes the place of a lost one while the others go on:
  uint32_t epoch = 0;  ///< the one that begins; 0: all ranks are new
  std::string lost{};  ///< which was, and how
  /// The lost one may live. Until the next round this machine does not count among those that may begin it.
  bool has_no_vote = false;
};

/// As many machines as may take part are there: this one waits, and takes the place of one that goes.
struct Spare {
  static constexpr std::string_view kType = "spare";
  std::string reason{};
  std::string instance{};     ///< of the rendezvous
  std::vector<Heir> heirs{};  ///< where to look for the job when the machine that serves is lost
};

/// The round ends, another one follows.
struct End {
  static constexpr std::string_view kType = "end";
  std::string reason{};
  int restarts = 0;    ///< so far
  bool saves = false;  ///< a planned change: the ranks are to save their work and stop
};

/// The job ends.
struct Over {
  static constexpr std::string_view kType = "over";
  std::string reason{};
  int code = 1;
  bool asked = false;  ///< a machine was told to leave: the ranks are to save their work and stop
};

/// All ranks wait: this machine is to try whether it reaches these, of the same round.
struct Probe {
  static constexpr std::string_view kType = "probe";
  struct Place {
    int group_rank = 0;
    std::string address{};
    int port = 0;
  };
  std::vector<Place> machines{};
};

/// Ranks wait for others, on this machine or elsewhere.
struct Hang {
  static constexpr std::string_view kType = "hang";
  std::string text{};       ///< who waits for whom, one line
  bool is_culprit = false;  ///< this machine has the first of the late ranks; where all wait, rank 0
};

/// A rank is replaced, here or elsewhere, or all ranks of a lost machine are: an epoch begins on all machines.
struct Replace {  // NOLINT(clang-analyzer-core.uninitialized.Assign): it does not look into vectors
  static constexpr std::string_view kType = "replace";
  int rank = 0;        ///< of the job
  uint32_t epoch = 0;  ///< counted from 1 in each round
  // As in Died, for a machine whose ranks do not go on.
  std::string what{};
  int code = 1;
  bool machine = false;       ///< a spare machine takes the place of the one whose first rank this is
  std::vector<Heir> heirs{};  ///< as they are then
};

/// A rank of this machine that has died is not replaced.
struct Kept {
  static constexpr std::string_view kType = "kept";
  int rank = 0;  ///< of the job
  std::string reason{};
};

/// This machine may not take part.
struct Refused {
  static constexpr std::string_view kType = "refused";
  std::string reason{};
};

/// It takes part no more.
struct Dropped {
  static constexpr std::string_view kType = "dropped";
  std::string reason{};
};

/// Another one serves the job.
struct Moved {
  static constexpr std::string_view kType = "moved";
  std::string reason{};
  bool leaves = false;  ///< the machine that served so far leaves for good
  std::string to{};     ///< the host that serves, where it is known
};

struct Yes {
  static constexpr std::string_view kType = "yes";
};

}  // namespace lockstep::launcher::message

namespace lockstep::launcher {

using Message =
    std::variant<message::Join, message::Ask, message::Failed, message::Resume, message::Succeeded,
                 message::Leaving, message::Leave, message::Quiet, message::Progress, message::Died,
                 message::Probed, message::Pause, message::Beat, message::Status, message::Start,
                 message::Spare, message::End, message::Over, message::Probe, message::Hang, message::Replace,
                 message::Kept, message::Refused, message::Dropped, message::Moved, message::Yes>;

std::string to_text(const Message& message);
/// None where `text` is no message.
std::optional<Message> parse_message(std::string_view text);

}  // namespace lockstep::launcher
