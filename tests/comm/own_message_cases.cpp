// Messages from a rank to itself. Ranks have one thread each, but where a case starts another.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::check_throws;
using lockstep::testing::world;

namespace {

at::Tensor numbers_of(int rank, int64_t count) { return lockstep::testing::of(0, count).add(rank); }

// A wait for a message that only this rank could send, and has not sent, ends at once.
TEST(OwnMessages, AreRefusedBeforeTheyAreSent) {
  const World world = lockstep::testing::world();
  const int self = world.rank();
  const std::string why = "it has sent itself no such message";
  for (const int64_t count : {1, 1000, 1000000}) {
    const at::Tensor received = at::zeros({count}), value = numbers_of(self, count);
    check_throws<ValueError>([&] { world.recv(received, self); }, why);
    const at::Tensor strided = at::zeros({count, 2}).select(1, 0);
    check_throws<ValueError>([&] { world.recv(strided, self); }, why);
    check_throws<ValueError>([&] { world.recv_bytes(self); }, why);
    const auto early = world.irecv(received, self);
    check_throws<ValueError>([&] { early->wait(); }, why);
    check_throws<ValueError>([&] { early->wait(); }, why);
    CHECK_TRUE(early->is_completed());
    CHECK_TRUE(!early->is_success());
    // None of those takes what comes later.
    const auto sent = world.isend(value, self, {.tag = 1});
    check_throws<ValueError>([&] { world.recv(received, self); }, why);
    CHECK_TRUE(world.recv(received, self, {.tag = 1}) == self);
    CHECK_EQUAL(received, value);
    sent->wait();
    received.zero_();
    const auto receive = world.irecv(received, self);
    const auto send = world.isend(value, self);
    receive->wait();
    send->wait();
    CHECK_EQUAL(received, value);
    CHECK_TRUE(receive->source_rank() == self);
    // More than the channel holds, received in reverse order.
    std::vector<std::shared_ptr<Work>> works;
    for (int tag = 0; tag < 40; ++tag) works.push_back(world.isend(value + tag, self, {.tag = tag}));
    for (int tag = 39; tag >= 0; --tag) {
      world.recv(received, self, {.tag = tag});
      CHECK_EQUAL(received, value + tag);
    }
    for (const auto& work : works) work->wait();
    const auto one_of_two = world.irecv(received, self);
    const auto any = world.irecv(strided, std::nullopt);
    world.send(value, self);
    one_of_two->wait();
    world.send(value, self);
    any->wait();
    CHECK_EQUAL(received, value);
    CHECK_EQUAL(strided, value);
  }
  world.barrier();
}

// Its first message may come long after this wait has begun.
TEST(OwnMessages, AnotherThreadMaySendThem) {
  const World world = lockstep::testing::world();
  const int self = world.rank();
  for (const int64_t count : {1, 1000, 1000000}) {
    const at::Tensor received = at::zeros({count}), value = numbers_of(self, count);
    for (const bool is_async : {false, true}) {
      received.zero_();
      std::thread sender([&] {
        std::this_thread::sleep_for(200ms);
        world.send(value, self);
      });
      if (is_async) {
        world.irecv(received, self)->wait();
      } else {
        world.recv(received, self);
      }
      sender.join();
      CHECK_EQUAL(received, value);
    }
    // It is gone.
    check_throws<ValueError>([&] { world.recv(received, self); }, "it has sent itself no such message");
  }
}

TEST(OwnMessages, AWaitForAnotherThreadHasADeadline) {
  const World world = lockstep::testing::world();
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const ProcessGroup group = world.new_group(everyone, {.timeout = 500ms});
  std::atomic<bool> ends{false};
  std::thread idle([&] {
    while (!ends) std::this_thread::sleep_for(1ms);
  });
  std::string text;
  try {
    group.recv(at::zeros({3}), world.rank(), {.tag = 5});
  } catch (const TimeoutError& error) {
    text = error.what();
  }
  ends = true;
  idle.join();
  CHECK_TRUE(text.find("(12 bytes, tag 5), which this rank has not sent itself, waited 500 ms") !=
             std::string::npos);
  world.barrier();
}

}  // namespace
