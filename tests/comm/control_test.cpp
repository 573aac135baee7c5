// Control connections: values reach all ranks, an end is no loss, silence and a closed connection are.
#include "lockstep/comm/uplink/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/wire.h"
#include "tests/comm/places_of_ranks.h"

namespace lockstep::uplink {
namespace {

using namespace std::chrono_literals;

/// All ranks of a job, in this process.
std::vector<std::shared_ptr<Control>> connect(const std::vector<int>& machine_of) {
  PlacesOfRanks places(static_cast<size_t>(*std::max_element(machine_of.begin(), machine_of.end())) + 1);
  std::vector<std::shared_ptr<Control>> ranks(machine_of.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      ranks[r] = std::make_shared<Control>(
          ControlPlace{
              .rank = static_cast<int>(r), .machine_of = machine_of, .host = "127.0.0.1", .secret = "s"},
          [&](const std::string* own) { return places.exchange(machine_of[r], own); }, 20s);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

std::vector<int> all_of(size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

template <class Condition>
bool comes_true(const Condition& condition, std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

TEST(Control, ValuesReachAllRanksAndAnEndIsNoLoss) {
  auto ranks = connect({0, 0, 1, 1, 2});
  std::vector<std::string> keys;
  for (size_t r = 0; r < ranks.size(); ++r) {
    keys.push_back("from/" + std::to_string(r));
    ranks[r]->set(keys.back(), "rank " + std::to_string(r) + "\nsays so");
  }
  for (const auto& rank : ranks) {
    const auto values = rank->wait_for(keys, 20s);
    for (size_t r = 0; r < values.size(); ++r)
      EXPECT_EQ(values[r], "rank " + std::to_string(r) + "\nsays so");
  }
  std::atomic<int> calls{0};
  {
    const Control::Watch watch(ranks[4], [&] { ++calls; });
    ranks[1]->set("late", "1");
    EXPECT_TRUE(comes_true([&] { return calls > 0; }, 20s));
  }
  EXPECT_EQ(ranks[4]->get("late"), "1");
  ranks[4]->forget("la");
  EXPECT_EQ(ranks[4]->get("late"), "");
  EXPECT_THROW(ranks[0]->wait_for({"never"}, 20ms), CommError);
  ranks[3].reset();  // beside the first of its machine
  ranks[2].reset();  // the first of its machine
  ranks[0]->set("after", "2");
  ranks[4]->wait_for({"after"}, 20s);
  std::this_thread::sleep_for(300ms);
  for (const size_t r : {0, 1, 4}) EXPECT_FALSE(ranks[r]->find_loss(all_of(5)).has_value()) << r;
}

/// Machine 1 of two, each of one rank: a connection that says what this test wants.
class FakeMachine {
 public:
  FakeMachine(const std::string& told, const std::string& secret) {
    std::istringstream fields(told);
    uint16_t port = 0;
    std::string number;
    fields >> port >> number;
    wire = std::make_unique<job::Wire>(job::connect_to(job::look_up("127.0.0.1", port).front(), 5),
                                       job::Wire::Side::client, "control\n" + secret + "\n" + number);
    wire->send("HM 1");
    wire->send("C");
  }
  /// Keeps the connection going.
  void serve(std::chrono::milliseconds longest, bool beats) const {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (std::chrono::steady_clock::now() < end) {
      wire->receive();
      if (beats) wire->send("T");
      std::this_thread::sleep_for(20ms);
    }
  }
  std::unique_ptr<job::Wire> wire;
};

/// Machine 0, beside a fake machine 1 that does `live`.
std::optional<Control::Loss> lose_machine(const std::string& secret,
                                          const std::function<void(FakeMachine&)>& live,
                                          std::chrono::milliseconds longest) {
  std::string told;
  std::thread fake;
  std::shared_ptr<Control> control;
  const auto exchange = [&](const std::string* own) {
    told = *own;
    fake = std::thread([&] {
      FakeMachine machine(told, secret);
      machine.serve(200ms, /*beats=*/true);
      live(machine);
    });
    return std::vector<std::string>{told, "1 x 10.9.9.9"};
  };
  const ControlPlace place{.rank = 0, .machine_of = {0, 1}, .host = "127.0.0.1", .secret = "s"};
  try {
    // Who knows another secret is refused until the time is over.
    control = std::make_shared<Control>(place, exchange, secret == place.secret ? 20s : 1s);
  } catch (...) {
    if (fake.joinable()) fake.join();
    throw;
  }
  comes_true([&] { return control->find_loss({1}).has_value(); }, longest);
  const auto loss = control->find_loss({1});
  fake.join();
  return loss;
}

/// A rank that is not the first of its machine: connections to the first ones, until it ends without a word.
class FakeRank {
 public:
  FakeRank(int rank, const std::vector<std::string>& told) {
    std::string secret;
    for (const std::string& text : told) {
      std::istringstream fields(text);
      uint16_t port = 0;
      std::string number;
      fields >> port >> number;
      if (secret.empty()) secret = "control\ns\n" + number;
      wires_.push_back(std::make_unique<job::Wire>(
          job::connect_to(job::look_up("127.0.0.1", port).front(), 5), job::Wire::Side::client, secret));
      wires_.back()->send("HR " + std::to_string(rank));
    }
  }
  void serve() const {
    for (const auto& wire : wires_) {
      for (const std::string& message : wire->receive()) {
        if (message.starts_with('T')) wire->send("T");
      }
    }
    std::this_thread::sleep_for(5ms);
  }

 private:
  std::vector<std::unique_ptr<job::Wire>> wires_;
};

/// What the first rank of a machine is for, its other ranks do for themselves once it is gone.
TEST(Control, RanksHearAndAreHeardWithoutTheFirstOfTheirMachine) {
  const std::vector<int> machine_of{0, 0, 0, 1, 1, 2};
  constexpr size_t kFake = 2;
  PlacesOfRanks places(3);
  std::vector<std::shared_ptr<Control>> ranks(machine_of.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (r == kFake) continue;
    threads.emplace_back([&, r] {
      ranks[r] = std::make_shared<Control>(
          ControlPlace{
              .rank = static_cast<int>(r), .machine_of = machine_of, .host = "127.0.0.1", .secret = "s"},
          [&](const std::string* own) { return places.exchange(machine_of[r], own); }, 20s);
    });
  }
  std::atomic<bool> is_dead{false};
  std::thread fake([&] {
    const FakeRank rank(kFake, places.exchange(0, nullptr));
    while (!is_dead) rank.serve();
  });
  for (std::thread& thread : threads) thread.join();
  ranks[1]->set("last", "before");
  ranks[0].reset();
  ranks[1]->set("from/1", "it");
  ranks[4]->set("from/4", "too");
  for (const size_t r : {1, 3, 4, 5}) ranks[r]->wait_for({"last", "from/1", "from/4"}, 20s);
  std::this_thread::sleep_for(300ms);
  for (const size_t r : {1, 3, 4, 5}) EXPECT_FALSE(ranks[r]->find_loss(all_of(6)).has_value()) << r;
  is_dead = true;
  fake.join();
  for (const size_t r : {1, 3, 4, 5}) {
    EXPECT_TRUE(comes_true([&] { return ranks[r]->find_loss({kFake}).has_value(); }, 20s)) << r;
    EXPECT_EQ(
        ranks[r]->find_loss(all_of(6))->text,
        "rank 2 on machine 0 (127.0.0.1, ranks 0, 1, 2) has ended: it has closed its connection without "
        "leaving the job");
  }
}

TEST(Control, SilenceIsALossAfterTheSetTimeAndAStopForLessIsNone) {
  env::set("LOCKSTEP_HEARTBEAT_TIMEOUT", "1");
  const auto silent = lose_machine(
      "s", [](FakeMachine& machine) { machine.serve(2500ms, false); }, 20s);
  ASSERT_TRUE(silent.has_value());
  EXPECT_EQ(silent->rank, 1);
  EXPECT_TRUE(silent->text.starts_with("machine 1 (10.9.9.9, rank 1) was lost: no heartbeat for "))
      << silent->text;
  env::set("LOCKSTEP_HEARTBEAT_TIMEOUT", "2");
  const auto stopped = lose_machine(
      "s",
      [](FakeMachine& machine) {
        machine.serve(600ms, false);
        machine.serve(2200ms, true);
        machine.wire->send("B1");
      },
      2500ms);
  EXPECT_FALSE(stopped.has_value());
  env::set("LOCKSTEP_HEARTBEAT_TIMEOUT", "0");
  EXPECT_THROW(lose_machine(
                   "s", [](FakeMachine&) {}, 1s),
               ValueError);
  env::set("LOCKSTEP_HEARTBEAT_TIMEOUT", std::nullopt);
}

TEST(Control, AConnectionThatClosesIsALossAtOnce) {
  const auto closed = lose_machine(
      "s", [](FakeMachine& machine) { machine.wire = nullptr; }, 20s);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(
      closed->text,
      "rank 1 on machine 1 (10.9.9.9, rank 1) has ended: it has closed its connection without leaving the job");
  // If one way is cut, only the other machine notices: it says so.
  const auto refused = lose_machine(
      "s", [](FakeMachine& machine) { machine.wire->send("Xhas lost this machine: no heartbeat for 4.5 s"); },
      20s);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->text, "machine 1 (10.9.9.9, rank 1) has lost this machine: no heartbeat for 4.5 s");
}

TEST(Control, AnotherSecretIsRefused) {
  EXPECT_THROW(lose_machine(
                   "other", [](FakeMachine& machine) { machine.serve(1s, false); }, 1s),
               CommError);
}

TEST(Control, AForkKeepsNoConnection) {
  auto ranks = connect({0, 1});
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe[1]);
    pollfd end{.fd = pipe[0], .events = POLLIN, .revents = 0};
    ::poll(&end, 1, 60'000);  // it lives until this process is done
    ranks.clear();            // whose threads are not here
    ::_exit(0);
  }
  ranks[1].reset();
  ranks[0]->set("goes", "on");
  std::this_thread::sleep_for(100ms);
  EXPECT_FALSE(ranks[0]->find_loss({0, 1}).has_value());
  const auto began = std::chrono::steady_clock::now();
  ranks[0].reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
  ::close(pipe[1]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

/// Opens files, which get the numbers of descriptors that have been closed. Are all still open in a fork?
bool are_files_open_in_a_fork() {
  std::vector<int> files;
  for (int i = 0; i < 16; ++i) files.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool are_open =
        std::all_of(files.begin(), files.end(), [](int file) { return ::fcntl(file, F_GETFD) >= 0; });
    ::_exit(are_open ? 0 : 1);
  }
  for (const int file : files) ::close(file);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(Control, AForkAfterAFailedJoinClosesNothing) {
  const auto join = [](const ExchangeByMachine& exchange) {
    return std::make_shared<Control>(
        ControlPlace{.rank = 0, .machine_of = {0, 1}, .host = "127.0.0.1", .secret = "s"}, exchange, 100ms);
  };
  const auto fail = [](const std::string* /*own*/) -> std::vector<std::string> {
    throw CommError("no other machine has come");
  };
  EXPECT_THROW(join(fail), CommError);
  EXPECT_TRUE(are_files_open_in_a_fork());
}

TEST(Control, AForkOfAForkClosesNothing) {
  const auto ranks = connect({0, 1});
  const pid_t child = ::fork();
  if (child == 0) ::_exit(are_files_open_in_a_fork() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::uplink
