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

HomeWatch::HomeWatch(const std::string& host, uint16_t port, const std::string& secret,
                     const std::string& question)
    : pid_(job::fork_helper("lockrun-home")) {
  if (pid_ == 0) {
    while (!answers(host, port, secret, question)) ::sleep(1);
    ::_exit(0);
  }
  ended_ = job::open_pidfd(pid_);
}

HomeWatch::~HomeWatch() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace lockstep::launcher
