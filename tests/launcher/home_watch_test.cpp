#include "launcher/machines/home_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <csignal>

#include "launcher/machines/rendezvous_server.h"
#include "lockstep/job/address.h"
#include "lockstep/job/listener.h"

namespace lockstep::launcher {
namespace {

const std::string kSecret = "a secret of some length";

RendezvousRules rules(const std::string& run_id, const std::string& instance) {
  return {.run_id = run_id, .min = 1, .max = 2, .numbered = false, .instance = instance};
}

/// A rendezvous for the job `run_id`, served by a process.
class Served {
 public:
  explicit Served(const std::string& run_id, const std::string& host = "127.0.0.1", uint16_t port = 0) {
    job::Address address = job::look_up(host, port).front();
    const UniqueFd listener = job::listen_at(address);
    EXPECT_TRUE(listener.valid());
    port_ = job::local_address(listener.get()).port();
    pid_ = start_rendezvous_server(listener, {.rules = rules(run_id, "that one"),
                                              .secret = kSecret,
                                              .keep_alive_interval = 1,
                                              .keep_alive_max_attempt = 5});
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;
  ~Served() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

/// What a watch of these hosts says within `seconds`; empty: nothing.
std::string answer_of(const std::vector<std::string>& hosts, uint16_t port, double seconds) {
  const std::string question = to_text(Rendezvous(rules("job", "this one")).question());
  HomeWatch watch(hosts, port, kSecret, question);
  pollfd ended{watch.fd(), POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(seconds * 1000)) == 1 ? watch.take_answer() : "";
}

TEST(HomeWatchTest, EachPlaceIsAskedAndTheOneThatAnswersIsNamed) {
  const Served lost_one("job", "127.0.0.2");
  EXPECT_EQ(answer_of({"127.0.0.1", "127.0.0.2"}, lost_one.port(), 30), "127.0.0.2")
      << "nobody serves at the endpoint";
  const Served endpoint("job", "127.0.0.1", lost_one.port());
  EXPECT_EQ(answer_of({"127.0.0.1", "127.0.0.2"}, lost_one.port(), 30), "127.0.0.1");
}

TEST(HomeWatchTest, ARendezvousOfAnotherJobIsNotHome) {
  const Served another("another job");
  EXPECT_EQ(answer_of({"127.0.0.1"}, another.port(), 3), "");
}

}  // namespace
}  // namespace lockstep::launcher
