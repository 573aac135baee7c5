#include "launcher/machines/home_watch.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "launcher/machines/messages.h"
#include "launcher/machines/wire.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {
namespace {

constexpr double kAnswerTimeout = 2;

bool answers(const job::Address& address, const std::string& secret, const std::string& question) {
  Wire wire(job::connect_to(address, kAnswerTimeout), Wire::Side::client, secret);
  wire.send(question);
  const double deadline = monotonic_seconds() + kAnswerTimeout;
  while (wire.state() == Wire::State::open && monotonic_seconds() < deadline) {
    pollfd wait{wire.fd(), POLLIN, 0};
    ::poll(&wait, 1, 100);
    for (const std::string& text : wire.receive()) {
      const auto message = parse_message(text);
      if (message && std::holds_alternative<message::Yes>(*message)) return true;
    }
    wire.flush();
  }
  return false;
}

bool answers(const std::string& host, uint16_t port, const std::string& secret, const std::string& question) {
  try {
    for (const job::Address& address : job::look_up(host, port)) {
      if (answers(address, secret, question)) return true;
    }
  } catch (const Error&) {
    return false;  // it cannot be found or reached
  }
  return false;
}

}  // namespace

HomeWatch::HomeWatch(const std::vector<std::string>& hosts, uint16_t port, const std::string& secret,
                     const std::string& question)
    : hosts_(hosts), pid_(job::fork_helper("lockrun-home")) {
  if (pid_ == 0) {
    while (true) {
      for (size_t i = 0; i < hosts.size(); ++i) {
        if (answers(hosts[i], port, secret, question)) ::_exit(static_cast<int>(i));
      }
      ::sleep(1);
    }
  }
  ended_ = job::open_pidfd(pid_);
}

std::string HomeWatch::take_answer() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return {};
  pid_ = -1;
  const size_t answered = WIFEXITED(status) ? static_cast<size_t>(WEXITSTATUS(status)) : hosts_.size();
  return answered < hosts_.size() ? hosts_[answered] : "";
}

HomeWatch::~HomeWatch() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace lockstep::launcher
