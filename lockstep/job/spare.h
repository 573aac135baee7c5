// A spare (`lockrun --spares`): a process that runs the program up to init() and waits there for the place of a rank that dies.
//
// Its environment has RANK=spare until then, which no program takes for a number. lockrun's guardian and the spare share a
// socket: the spare says once that it waits, and the guardian answers with the rank's environment and standard streams.
#pragma once

#include <string>
#include <vector>

namespace lockstep::job {

/// A rank's place, for a spare that takes it.
struct Place {
  /// "NAME=value" to set, "NAME" to remove.
  std::vector<std::string> environment{};
  /// Standard input, output and error.
  int streams[3] = {-1, -1, -1};
};

/// The environment of a spare in a job one of whose ranks has `of_a_rank`. `fd`: its end of the socket.
std::vector<std::string> make_spare_environment(std::vector<std::string> of_a_rank, int fd);
/// What a process with the environment `from` changes in it to have `to`.
std::vector<std::string> find_changes(const std::vector<std::string>& from,
                                      const std::vector<std::string>& to);

/// Sends it by the guardian's end of the socket; false: the spare has ended. Does not block.
bool send_place(int socket, const Place& place);
/// Has the spare said that it waits? False where it has not, or has ended: then `is_open` becomes false. Does not block.
bool receive_waits(int socket, bool& is_open);

/// Is this process a spare that has no place yet?
bool is_spare();
/// In a spare: blocks until it has a place; environment and standard streams are those of the rank then. Returns what has
/// changed in the environment. Elsewhere it does nothing. Throws Error where lockrun has ended.
std::vector<std::string> wait_for_place();

}  // namespace lockstep::job
