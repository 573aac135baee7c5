// One turn of an event loop: what is waited for, each with what happens then.
#pragma once

#include <poll.h>

#include <functional>
#include <vector>

namespace lockstep::launcher {

class PollSet {
 public:
  using Handler = std::function<void()>;

  /// `events` as for poll(); a negative descriptor is left out.
  void add(int fd, short events, Handler handler);
  /// Waits until one of them is ready, `seconds` at most (negative: without end), and calls the handlers of
  /// those that are, in the order in which they were added.
  void wait(double seconds);

 private:
  std::vector<pollfd> polls_;
  std::vector<Handler> handlers_;
};

}  // namespace lockstep::launcher
