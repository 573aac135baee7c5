// Gloo writes to sockets without saying that a closed one must raise no signal.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::backends {

/// While it lives a write of this thread to a connection that a peer has closed is an error, and no SIGPIPE that ends the
/// process; the same for threads that begin meanwhile, for good.
class BlockedSigpipe {
 public:
  BlockedSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  ~BlockedSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec at_once{};
    while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace lockstep::backends
