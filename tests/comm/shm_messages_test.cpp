// Messages between ranks of one node, over real processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;
using Request = PointToPoint::Request;

Request send_request(const std::vector<int64_t>& data, int peer, uint32_t tag = 0) {
  return {.is_send = true,
          .peer = peer,
          .tag = tag,
          .data = reinterpret_cast<std::byte*>(const_cast<int64_t*>(data.data())),
          .bytes = data.size() * sizeof(int64_t)};
}

Request receive_request(std::vector<int64_t>& data, int peer, uint32_t tag = 0) {
  Request request = send_request(data, peer, tag);
  request.is_send = false;
  return request;
}

void run(Group& group, Request request) {
  group.start(request);
  group.wait(request, kTimeout);
}

class MessagesTest : public ::testing::TestWithParam<int> {
 protected:
  MessagesTest() : segment_(create_segment(GetParam(), kArenaBytes)) {}
  void as_processes(const std::function<void(Group&)>& body) {
    expect_all_succeed(run_processes(GetParam(), [&](int rank) {
      Rank self(segment_.get(), rank);
      body(self.group);
      self.group.barrier(kTimeout);
      // Once everything has been received nothing is kept, but for what the next send gives back.
      EXPECT_LE(self.node.arena().bytes_in_use(), size_t{8} << 20);
    }));
  }
  UniqueFd segment_;
};

TEST_P(MessagesTest, AroundTheRingInEverySize) {
  as_processes([](Group& group) {
    const int next = (group.rank() + 1) % group.size(),
              previous = (group.rank() + group.size() - 1) % group.size();
    for (const size_t count : {0, 1, 12, 13, 5000, 100000}) {
      const std::vector<int64_t> mine(count, group.rank());
      std::vector<int64_t> theirs(count, -1);
      run(group, send_request(mine, next));
      run(group, receive_request(theirs, previous));
      EXPECT_EQ(theirs, std::vector<int64_t>(count, previous));
    }
  });
}

TEST_P(MessagesTest, ManyInFlightInBothDirectionsWithoutDeadlock) {
  as_processes([](Group& group) {
    constexpr int kMessages = 100;  // many times the depth of a channel
    std::deque<std::vector<int64_t>> buffers;
    std::deque<Request> requests;
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int n = 0; n < kMessages; ++n) {
        buffers.emplace_back(static_cast<size_t>(n * 7 % 300), group.rank() * 1000 + n);
        requests.push_back(send_request(buffers.back(), peer));
        group.start(requests.back());
      }
    }
    for (int peer = 0; peer < group.size(); ++peer) {
      for (int n = 0; n < kMessages; ++n) {
        std::vector<int64_t> received(static_cast<size_t>(n * 7 % 300));
        run(group, receive_request(received, peer));
        ASSERT_EQ(received, std::vector<int64_t>(received.size(), peer * 1000 + n));
      }
    }
    for (Request& request : requests) group.wait(request, kTimeout);
  });
}

/// Messages come at any moment, also between the looks of two receives that wait for one.
TEST_P(MessagesTest, SeveralReceivesTakeMessagesInTheOrderOfSending) {
  as_processes([](Group& group) {
    const int next = (group.rank() + 1) % group.size(),
              previous = (group.rank() + group.size() - 1) % group.size();
    constexpr size_t kAtOnce = 4;
    for (int64_t round = 0; round < 3000; ++round) {
      std::vector<std::vector<int64_t>> received(kAtOnce, std::vector<int64_t>(1)), sent;
      std::vector<Request> requests;
      for (std::vector<int64_t>& one : received) requests.push_back(receive_request(one, previous));
      for (size_t i = 0; i < kAtOnce; ++i) sent.push_back({round * 10 + static_cast<int64_t>(i)});
      for (const std::vector<int64_t>& one : sent) requests.push_back(send_request(one, next));
      // Half of the ranks receive first.
      if (group.rank() % 2 == 1) std::rotate(requests.begin(), requests.begin() + kAtOnce, requests.end());
      for (Request& request : requests) group.start(request);
      for (Request& request : requests) group.wait(request, kTimeout);
      ASSERT_EQ(received, sent);
    }
  });
}

TEST_P(MessagesTest, TagsPickMessagesOutOfOrder) {
  as_processes([](Group& group) {
    const int next = (group.rank() + 1) % group.size(),
              previous = (group.rank() + group.size() - 1) % group.size();
    for (uint32_t tag = 0; tag < 10; ++tag) run(group, send_request({static_cast<int64_t>(tag)}, next, tag));
    for (uint32_t tag = 10; tag-- > 0;) {
      std::vector<int64_t> received(1);
      run(group, receive_request(received, previous, tag));
      EXPECT_EQ(received[0], tag);
    }
  });
}

TEST_P(MessagesTest, FromAnySource) {
  as_processes([](Group& group) {
    if (group.rank() != 0) {
      run(group, send_request({group.rank()}, 0));
      return;
    }
    std::vector<bool> seen(static_cast<size_t>(group.size()));
    for (int n = 1; n < group.size(); ++n) {
      std::vector<int64_t> received(1);
      Request request = receive_request(received, PointToPoint::kAnySource);
      group.start(request);
      group.wait(request, kTimeout);
      EXPECT_EQ(received[0], request.peer);
      EXPECT_FALSE(seen[static_cast<size_t>(request.peer)]);
      seen[static_cast<size_t>(request.peer)] = true;
    }
  });
}

TEST_P(MessagesTest, PendingSendsLeaveWhileACollectiveWaits) {
  as_processes([](Group& group) {
    const int next = (group.rank() + 1) % group.size(),
              previous = (group.rank() + group.size() - 1) % group.size();
    std::deque<Request> requests;
    const std::vector<int64_t> data(1000, group.rank());
    for (int n = 0; n < 50; ++n) {
      requests.push_back(send_request(data, next));
      group.start(requests.back());
    }
    if (group.rank() % 2 == 0) group.barrier(kTimeout);  // with sends that found no room
    std::vector<int64_t> received(1000);
    for (int n = 0; n < 50; ++n) run(group, receive_request(received, previous));
    if (group.rank() % 2 == 1) group.barrier(kTimeout);
    for (Request& request : requests) group.wait(request, kTimeout);
  });
}

/// Where an arena has 2 MiB, what does not fit there passes through a window, in both directions at once.
void larger_than_the_arena(Group& group) {
  const int rank = group.rank();
  const int next = (rank + 1) % group.size(), previous = (rank + group.size() - 1) % group.size();
  constexpr size_t kCount = 700001;  // 5.6 MB
  const auto value = [](int from, size_t message, size_t i) {
    return static_cast<int64_t>(i * 31 + message * 7) + from;
  };
  constexpr size_t kMessages = 7;  // together more than the windows that the arena has room for
  std::deque<std::vector<int64_t>> sent, received;
  std::deque<Request> requests;
  for (size_t n = 0; n < kMessages; ++n) {
    const size_t count = n % 2 == 0 ? kCount : 90000;
    sent.emplace_back(count);
    for (size_t i = 0; i < count; ++i) sent[n][i] = value(rank, n, i);
    received.emplace_back(count);
    requests.push_back(send_request(sent[n], next, static_cast<uint32_t>(n)));
    group.start(requests.back());
  }
  for (size_t n = kMessages; n-- > 0;) {  // the last one first
    requests.push_back(receive_request(received[n], previous, static_cast<uint32_t>(n)));
    group.start(requests.back());
  }
  for (Request& request : requests) group.wait(request, kTimeout);
  for (size_t n = 0; n < kMessages; ++n) {
    for (size_t i = 0; i < received[n].size(); ++i) ASSERT_EQ(received[n][i], value(previous, n, i)) << i;
  }
  // Blocking, where the receiver is at work on the other side.
  if (group.size() > 1 && rank < 2) {
    std::vector<int64_t> data(kCount, rank + 5);
    run(group, rank == 0 ? send_request(data, 1) : receive_request(data, 0));
    EXPECT_EQ(data, std::vector<int64_t>(kCount, 5));
  }
  // What messages that were received had there is free for others.
  const std::vector<int64_t> kept(200000, rank);  // 1.6 MB
  std::vector<int64_t> got(200000);
  Request send = send_request(kept, next), receive = receive_request(got, previous);
  group.start(send);
  group.start(receive);
  group.wait(receive, kTimeout);
  group.wait(send, kTimeout);
  group.barrier(kTimeout);
  std::vector<int64_t> data(300000, 1);
  group.wait(group.start_all_reduce(data.data(), data.size(), DType::int64, ReduceOp::SUM), kTimeout);
  EXPECT_EQ(data, std::vector<int64_t>(data.size(), group.size()));
  group.release(group.allocate(kHugePage - 200000));
  group.barrier(kTimeout);
}

TEST_P(MessagesTest, LargerThanTheArena) {
  const UniqueFd small = create_segment(GetParam(), kHugePage);
  expect_all_succeed(run_processes(GetParam(), [&](int rank) {
    Rank self(small.get(), rank);
    larger_than_the_arena(self.group);
  }));
}

/// For the thread sanitizer.
TEST_P(MessagesTest, RanksAsThreads) {
  const UniqueFd small = create_segment(GetParam(), kHugePage);
  const auto shared = std::make_shared<const Segment>(Segment::map(small.get()));
  testing::run_threads(GetParam(), [&](int rank) {
    Rank self(shared, rank);
    larger_than_the_arena(self.group);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, MessagesTest, ::testing::Values(1, 2, 3, 5),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(MessagesFailureTest, ADeadSenderIsNamed) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    if (rank == 1) ::raise(SIGKILL);
    std::vector<int64_t> data(3);
    EXPECT_THROW(run(self.group, receive_request(data, 1)), PeerLostError);
  });
}

TEST(MessagesFailureTest, AReceiverThatDiesInAWindowIsNamed) {
  const UniqueFd segment = create_segment(2, kHugePage);
  const auto statuses = run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    std::vector<int64_t> data(1000000);
    if (rank == 1) {
      Request request = receive_request(data, 0);
      self.group.start(request);
      std::this_thread::sleep_for(20ms);
      self.group.progress();
      ::raise(SIGKILL);
    }
    try {
      run(self.group, send_request(data, 1));
      ADD_FAILURE() << "no error";
    } catch (const PeerLostError& error) {
      EXPECT_EQ(error.rank(), 1);
    }
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(MessagesFailureTest, AnotherSizeIsAnErrorOnBothSides) {
  run_ranks(2, [&](Rank& self, int rank) {
    std::vector<int64_t> data(static_cast<size_t>(3 + rank));
    if (rank == 0) {
      run(self.group, send_request(data, 1));
      EXPECT_THROW(self.group.barrier(kTimeout), MismatchError);
    } else {
      EXPECT_THROW(run(self.group, receive_request(data, 0)), MismatchError);
    }
  });
}

}  // namespace
}  // namespace lockstep::shm
