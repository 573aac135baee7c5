// The key-value store (c10d's TCPStore, FileStore, HashStore) through which ranks meet that share no
// inherited memory.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Store;
}

namespace lockstep::job {
struct LaunchEnvironment;
}

namespace lockstep {

/// Connects to (or, as rank 0 without a launcher's store, serves) the TCPStore at MASTER_ADDR:MASTER_PORT.
/// Earlier attempts of the job may have left keys in it (store_part.h). Throws CommError naming the address.
/// Blocks until connected.
c10::intrusive_ptr<c10d::Store> connect_store(const job::LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout);

/// Where ranks meet by an init_method: "tcp://host:port" (served by rank 0) or "file:///path" (a file that
/// all ranks see and that does not exist yet; the last to leave removes it). rank and world_size: -1 where
/// unknown; "?rank=0&world_size=2" at the end names them.
struct StoreAddress {
  std::string scheme, host, path;
  int port = 0;
  int rank = -1;
  int world_size = -1;
  /// Throws ValueError saying what is wrong with `url`.
  static StoreAddress parse(const std::string& url);
};

/// Opens it for one of `world_size` ranks. Throws CommError naming it, ValueError where the file's folder is
/// missing. Blocks until connected. What this process serves, and files, stay open for the next job that
/// meets there.
c10::intrusive_ptr<c10d::Store> open_store(const StoreAddress& address, int rank, int world_size,
                                           std::chrono::milliseconds timeout);

/// Lets go of what stayed open; at the end of the process.
void close_kept_stores();

}  // namespace lockstep
