// How ranks on Gloo end. A process that ends with bytes unread in its sockets resets the connections, and a peer that is
// still at work in the last collective loses what it was sent: "Connection reset by peer". So they end together.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace lockstep {

/// This process is rank `rank` of `size` ranks on Gloo, and `store` is their job's own: say_goodbye() is to wait for them.
/// Another call replaces the former.
void expect_goodbye(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

/// At the end of the process, with its exit code. Blocks until all ranks of the job have come here, 5 s at most: one
/// may have work of its own left. After a failure it does nothing, since nobody is to wait for that.
void say_goodbye(int exit_code);

}  // namespace lockstep
