// A rank of the shared-memory core, as tests use it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/shm/areas.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/node.h"
#include "tests/comm/ranks.h"

namespace lockstep::shm {

constexpr size_t kArenaBytes = size_t{64} << 20;
constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(30);

/// A rank's node and its group of all ranks.
struct Rank {
  template <class Memory>  // a descriptor, or a mapping that threads share
  Rank(Memory&& memory, int rank, std::chrono::milliseconds timeout = kTimeout)
      : node(memory, rank), group(node, 0, everyone(node), rank, timeout) {
    node.wait_for_all(kTimeout);
  }
  static std::vector<int> everyone(const Node& node) {
    std::vector<int> members(static_cast<size_t>(node.segment().ranks()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  template <class T>
  T* allocate(size_t count) {
    return reinterpret_cast<T*>(node.arena().allocate(count * sizeof(T)));
  }
  Node node;
  Group group;
};

/// Runs `body` in as many processes, each of them a rank of one segment; all must succeed.
inline void run_ranks(int ranks, const std::function<void(Rank& self, int rank)>& body) {
  const UniqueFd segment = create_segment(ranks, kArenaBytes);
  testing::expect_all_succeed(testing::run_processes(ranks, [&](int rank) {
    Rank self(segment.get(), rank);
    body(self, rank);
  }));
}

/// A group of all ranks beside the one that `self` has.
inline std::unique_ptr<Group> another_group(Rank& self) {
  int64_t area = self.group.rank() == 0 ? claim_area(self.node.segment(), self.group.size()) : 0;
  broadcast(self.group, &area, 1, DType::int64, 0, kTimeout);
  return std::make_unique<Group>(self.node, static_cast<int>(area), Rank::everyone(self.node),
                                 self.group.rank(), kTimeout);
}

/// What the Error says that `call` throws.
template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks\n" << part;
}

}  // namespace lockstep::shm
