#include "lockstep/comm/segment_exchange.h"

#include <fcntl.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/launch_environment.h"
#include "lockstep/comm/shm/segment.h"

namespace lockstep {
namespace {

std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

UniqueFd exchange_segment(c10d::Store& store, const LaunchEnvironment& launch) {
  const std::string key = "lockstep/segment/" + std::to_string(launch.group_rank);
  const std::string opened_key = key + "/opened";
  if (launch.local_rank == 0) {
    UniqueFd fd = shm::create_segment(launch.local_world_size,
                                      static_cast<size_t>(env::get_int("LOCKSTEP_ARENA_BYTES").value_or(0)));
    const uint64_t nonce = shm::Segment::map(fd.get()).header().nonce;
    const std::string place =
        std::to_string(::getpid()) + " " + std::to_string(fd.get()) + " " + std::to_string(nonce);
    store.set(key, place);
    // The descriptor must stay open until every other rank has its own.
    for (int r = 1; r < launch.local_world_size; ++r) store.wait({opened_key + "/" + std::to_string(r)});
    return fd;
  }
  std::istringstream place(to_text(store.get(key)));
  int pid = 0;
  int remote_fd = 0;
  uint64_t nonce = 0;
  place >> pid >> remote_fd >> nonce;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(remote_fd);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const std::string advice =
      "; ranks that do not share memory and process numbers (other machines, other containers) need "
      "--backend gloo";
  if (!fd.valid()) {
    throw CommError("rank " + std::to_string(launch.rank) +
                    ": cannot open the shared segment of local rank 0 (" + path +
                    "): " + std::strerror(errno) + advice);
  }
  if (shm::Segment::map(fd.get()).header().nonce != nonce) {
    throw CommError("rank " + std::to_string(launch.rank) + ": " + path +
                    " is not the segment of local rank 0: the ranks do not share memory" + advice);
  }
  store.set(opened_key + "/" + std::to_string(launch.local_rank), std::string("1"));
  return fd;
}

}  // namespace lockstep
