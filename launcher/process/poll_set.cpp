#include "launcher/process/poll_set.h"

#include <algorithm>
#include <utility>

namespace lockstep::launcher {

void PollSet::add(int fd, short events, Handler handler) {
  if (fd < 0) return;
  polls_.push_back({fd, events, 0});
  handlers_.push_back(std::move(handler));
}

void PollSet::wait(double seconds) {
  constexpr double kLongest = 3600;
  const int milliseconds = seconds < 0 ? -1 : static_cast<int>(std::min(seconds, kLongest) * 1000) + 1;
  if (::poll(polls_.data(), polls_.size(), milliseconds) <= 0) return;
  for (size_t i = 0; i < polls_.size(); ++i) {
    if (polls_[i].revents != 0) handlers_[i]();
  }
}

}  // namespace lockstep::launcher
