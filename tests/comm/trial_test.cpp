// The first messages between machines over a new engine: all ranks hear the same, whatever fails.
#include "lockstep/comm/uplink/trial.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/comm/uplink/ucx.h"
#include "tests/comm/fake_uplink.h"
#include "tests/comm/places_of_ranks.h"

namespace lockstep::uplink {
namespace {

using namespace std::chrono_literals;
using testing::Cables;
using testing::FakeUplink;

using Make = std::function<std::unique_ptr<Uplink>(int machine, const ExchangeAddresses& exchange)>;

/// No message from `from` arrives here.
class DeafUplink final : public Uplink {
 public:
  DeafUplink(Cables& cables, int machine, int from) : inner_(cables, machine), from_(from) {}
  int machine() const override { return inner_.machine(); }
  int machines() const override { return inner_.machines(); }
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) override {
    return inner_.send(to, tag, std::move(buffer));
  }
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) override {
    if (from == from_) return std::make_shared<Lost>();
    return inner_.recv(from, tag, std::move(buffer));
  }
  void stop() noexcept override {}  // that of FakeUplink stops all machines
  uint64_t sent_bytes() const override { return inner_.sent_bytes(); }

 private:
  struct Lost final : Transfer {
    void wait(std::chrono::milliseconds /*timeout*/) override { throw CommError("no way there"); }
  };
  FakeUplink inner_;
  int from_;
};

/// Messages leave when it is flushed, or not at all.
class LazyUplink final : public Uplink {
 public:
  LazyUplink(Cables& cables, int machine, bool is_lost) : inner_(cables, machine), is_lost_(is_lost) {}
  int machine() const override { return inner_.machine(); }
  int machines() const override { return inner_.machines(); }
  std::shared_ptr<Transfer> send(int to, int tag, Buffer buffer) override {
    waiting_.push_back([this, to, tag, buffer = std::move(buffer)] { inner_.send(to, tag, buffer); });
    return std::make_shared<Sent>();
  }
  std::shared_ptr<Transfer> recv(int from, int tag, Buffer buffer) override {
    return inner_.recv(from, tag, std::move(buffer));
  }
  void flush(std::chrono::milliseconds /*timeout*/) override {
    if (is_lost_) throw CommError("it was cut");
    for (const auto& leave : std::exchange(waiting_, {})) leave();
  }
  void stop() noexcept override { inner_.stop(); }
  uint64_t sent_bytes() const override { return inner_.sent_bytes(); }

 private:
  struct Sent final : Transfer {
    void wait(std::chrono::milliseconds /*timeout*/) override {}
  };
  FakeUplink inner_;
  bool is_lost_;
  std::vector<std::function<void()>> waiting_;
};

std::vector<std::string> names_of(int machines) {
  std::vector<std::string> names;
  for (int m = 0; m < machines; ++m) names.push_back("machine " + std::to_string(m));
  return names;
}

/// What each rank of a job gets; `make`: as try_uplink() has it.
std::vector<TriedUplink> try_on(const std::vector<int>& machine_of, const Make& make) {
  const int machines = *std::max_element(machine_of.begin(), machine_of.end()) + 1;
  PlacesOfRanks places(static_cast<size_t>(machines));
  std::vector<TriedUplink> tried(machine_of.size());
  std::vector<std::shared_ptr<Control>> controls(machine_of.size());  // none leaves before all have heard
  std::vector<std::thread> threads;
  for (size_t r = 0; r < machine_of.size(); ++r) {
    threads.emplace_back([&, r] {
      const int machine = machine_of[r];
      controls[r] = std::make_shared<Control>(
          ControlPlace{
              .rank = static_cast<int>(r), .machine_of = machine_of, .host = "127.0.0.1", .secret = "s"},
          [&](const std::string* own) { return places.exchange(machine, own); }, 60s);
      const bool speaks = std::find(machine_of.begin(), machine_of.end(), machine) ==
                          machine_of.begin() + static_cast<std::ptrdiff_t>(r);
      const TrialPlace place{.name = "job",
                             .machine = machine,
                             .speaks = speaks,
                             .machines = names_of(machines),
                             .timeout = 60s};
      tried[r] = try_uplink(controls[r], place,
                            [&](const ExchangeAddresses& exchange) { return make(machine, exchange); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return tried;
}

void expect_problem(const std::vector<TriedUplink>& tried, const std::string& problem) {
  for (const TriedUplink& rank : tried) {
    EXPECT_EQ(rank.problem, problem);
    EXPECT_EQ(rank.uplink, nullptr);
  }
}

TEST(Trial, GivesLeadersAnUplinkThatHasCarriedMessages) {
  const std::vector<int> machine_of{0, 0, 1, 2, 2};
  Cables cables(3);
  const auto tried = try_on(machine_of, [&](int machine, const ExchangeAddresses& exchange) {
    const auto addresses = exchange("address of " + std::to_string(machine));
    EXPECT_EQ(addresses, (std::vector<std::string>{"address of 0", "address of 1", "address of 2"}));
    return std::make_unique<FakeUplink>(cables, machine);
  });
  for (size_t r = 0; r < tried.size(); ++r) {
    EXPECT_EQ(tried[r].problem, "");
    const bool leads = r == 0 || r == 2 || r == 3;
    ASSERT_EQ(tried[r].uplink != nullptr, leads) << "rank " << r;
    if (leads) EXPECT_GT(tried[r].uplink->sent_bytes(), 0);
  }
  // Nothing of the trial is left to be taken for a message.
  const Buffer sent = make_buffer(5), received = make_buffer(5);
  std::memset(sent.data(), 7, 5);
  tried[0].uplink->send(1, 0, sent);
  tried[2].uplink->recv(0, 0, received)->wait(10s);
  EXPECT_EQ(std::memcmp(sent.data(), received.data(), 5), 0);
}

TEST(Trial, TellsAllRanksBetweenWhichMachinesItFails) {
  Cables cables(3);
  const auto tried = try_on({0, 0, 1, 1, 2}, [&](int machine, const ExchangeAddresses& exchange) {
    exchange("an address");
    return std::make_unique<DeafUplink>(cables, machine, machine == 1 ? 2 : -1);
  });
  expect_problem(tried, "between machine 1 and machine 2: no way there");
}

TEST(Trial, TellsAllRanksOnWhichMachineThereIsNoUplink) {
  Cables cables(2);
  const auto tried =
      try_on({0, 1, 1}, [&](int machine, const ExchangeAddresses& exchange) -> std::unique_ptr<Uplink> {
        if (machine == 1) throw CommError("no device");
        EXPECT_EQ(exchange("an address"), (std::vector<std::string>{"an address", ""}));
        return std::make_unique<FakeUplink>(cables, machine);
      });
  expect_problem(tried, "on machine 1: no device");
}

TEST(Trial, EndsWhenItsMessagesHaveLeft) {
  Cables cables(3);
  const auto tried = try_on({0, 1, 2}, [&](int machine, const ExchangeAddresses& exchange) {
    exchange("an address");
    std::unique_ptr<Uplink> uplink = std::make_unique<FakeUplink>(cables, machine);
    if (machine == 0) uplink = std::make_unique<LazyUplink>(cables, machine, /*is_lost=*/false);
    return uplink;
  });
  for (const TriedUplink& rank : tried) {
    EXPECT_EQ(rank.problem, "");
    EXPECT_NE(rank.uplink, nullptr);
  }
}

TEST(Trial, FailsWhereItsMessagesDoNotLeave) {
  Cables cables(2);
  FakeUplink other(cables, 1);
  const Buffer theirs = make_buffer(size_t{16} << 10);
  std::memset(theirs.data(), 1, theirs.bytes);
  other.send(0, 2, theirs);
  LazyUplink uplink(cables, 0, /*is_lost=*/true);
  EXPECT_EQ(try_messages(uplink, names_of(2), 10s), "between machine 0 and machine 1: it was cut");
}

TEST(Trial, WaitsForAMessageForSoLong) {
  Cables cables(2);
  FakeUplink uplink(cables, 0);
  EXPECT_EQ(try_messages(uplink, names_of(2), 100ms), "between machine 0 and machine 1: no answer for 0.1 s");
}

/// Two machines that have sent each other a message over UCX.
std::array<std::unique_ptr<Uplink>, 2> connect_over_ucx() {
  std::array<std::promise<std::string>, 2> addresses;
  const std::array told{addresses[0].get_future().share(), addresses[1].get_future().share()};
  const auto make = [&](size_t machine) {
    auto uplink = make_ucx_uplink(static_cast<int>(machine), 2, [&](const std::string& own) {
      addresses[machine].set_value(own);
      return std::vector{told[0].get(), told[1].get()};
    });
    const int other = 1 - static_cast<int>(machine);
    const auto received = uplink->recv(other, 0, make_buffer(10));
    const auto sent = uplink->send(other, 0, make_buffer(10));
    received->wait(30s);
    sent->wait(30s);
    return uplink;
  };
  auto other = std::async(std::launch::async, make, 1);
  auto own = make(0);
  return {std::move(own), other.get()};
}

/// Connects to whatever this process listens on, and begins as UCX does: more should follow.
std::vector<UniqueFd> begin_to_connect() {
  constexpr uint64_t kBeginning = 0xCAFEBABE12345678;
  std::vector<UniqueFd> begun;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_storage address{};
    size = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::getsockname(fd, place, &size), 0);
    const int client = begun.emplace_back(::socket(address.ss_family, SOCK_STREAM, 0)).get();
    EXPECT_EQ(::connect(client, place, size), 0);
    EXPECT_EQ(::send(client, &kBeginning, sizeof kBeginning, 0), ssize_t{sizeof kBeginning});
  }
  return begun;
}

/// Also while a second connection is there, as of two machines that connect at once: the other machine may wait for nothing
/// for a long time.
TEST(Trial, AFlushOverUcxNeedsNoAnswer) {
  if (!ucx_problem("lo").empty()) return;  // uplink_test.cpp says so
  const auto [uplink, other] = connect_over_ucx();
  std::vector<UniqueFd> begun = begin_to_connect();
  const auto waits = [](const auto& call) {
    try {
      call();
      return false;
    } catch (const TimeoutError&) {
      return true;
    }
  };
  const auto nothing = uplink->recv(1, 1, make_buffer(10));
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!waits([&uplink = uplink] { uplink->flush(1ms); }) && std::chrono::steady_clock::now() < end)
    EXPECT_TRUE(waits([&] { nothing->wait(1ms); }));
  EXPECT_TRUE(waits([&uplink = uplink] { uplink->flush(1ms); }));
  begun.clear();
  EXPECT_NO_THROW(uplink->flush(20s));
  // So neither waits for the other at its end, in this one thread.
  uplink->stop();
  other->stop();
}

TEST(Trial, FailsOverUcxWhereThereIsNoWay) {
  if (!ucx_problem("lo").empty()) return;  // uplink_test.cpp says so
  const auto uplink = make_ucx_uplink(0, 2, [](const std::string& own) {
    return std::vector<std::string>{own, ""};
  });
  EXPECT_EQ(try_messages(*uplink, names_of(2), 5s),
            "between machine 0 and machine 1: Destination is unreachable");
}

/// With two uplinks that nobody destroys, each of which is connected to itself. A thread waits in one.
[[noreturn]] void exit_with_uplinks() {
  std::vector<Uplink*> uplinks;
  for (int m = 0; m < 2; ++m) {
    uplinks.push_back(make_ucx_uplink(0, 2, [](const std::string& own) {
                        return std::vector<std::string>{own, own};
                      }).release());
  }
  std::thread([uplink = uplinks[0]] {
    try {
      uplink->recv(1, 0, make_buffer(10))->wait(60s);
    } catch (const Error&) {  // it is stopped
    }
  }).detach();
  std::this_thread::sleep_for(50ms);
  std::exit(7);
}

TEST(TrialDeathTest, AProcessEndsWhileUcxIsUsed) {
  if (!ucx_problem("lo").empty()) return;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_uplinks(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace lockstep::uplink
