// Ranks that send nonsense, fork, or use groups in threads.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::of;
using lockstep::testing::sum_of;
using lockstep::testing::world;
using nlohmann::json;

namespace {

/// What is not made by our own sender: refused by name, however it is nested, and nothing is harmed.
TEST(Groups, HostileObjects) {
  ONLY_IF(world().size() == 2 &&
          world().backend_name() == "lockstep");  // one sends, one reads, and that is slow
  const World world = lockstep::testing::world();
  const auto send = [&](const std::string& bytes) {
    if (world.rank() == 1) world.send_bytes(bytes, 0);
  };
  const auto refused = [&](const std::string& bytes, const std::string& part) {
    send(bytes);
    if (world.rank() == 0) check_throws<ValueError>([&] { recv_object(world, 1); }, "rank 1" + part);
  };
  const size_t many = 3000000;
  refused(std::string(many, '\x81'),
          ": an object of more than 500 levels");  // a list in a list in a list ...
  refused(std::string(many, '\xA1'), ": an object of more than 500 levels");  // objects as keys
  refused(std::string(many, '\x7F'), " sent 3000000 bytes that are no object (CBOR): malformed at byte 0");
  refused(std::string(many, '\x5F'), " sent 3000000 bytes that are no object (CBOR): malformed at byte 0");
  refused(std::string(many, '\xC1'), " sent 3000000 bytes that are no object");
  refused("\x9B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", " sent 9 bytes that are no object");  // 2^64 values follow
  refused("\x7B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", " sent 9 bytes that are no object");
  refused("", " sent 0 bytes that are no object");
  // Bytes where a length was expected.
  const at::Tensor length = at::full({1}, int64_t{1} << 60, at::kLong),
                   negative = at::full({1}, -1, at::kLong);
  for (const at::Tensor& wrong : {length, negative}) {
    if (world.rank() == 1) world.send(wrong, 0);
    if (world.rank() == 0) check_throws<ValueError>([&] { world.recv_bytes(1); }, "rank 1 announces ");
  }
  json nested = 1;
  for (int level = 0; level < 500; ++level) nested = json::array({std::move(nested)});
  CHECK_TRUE(broadcast_object(world, nested) == nested);
  json large = json::array();
  for (int i = 0; i < 200000; ++i) large.push_back({{"i", i}, {"text", "entry"}});
  CHECK_TRUE(broadcast_object(world, world.rank() == 0 ? large : json()) == large);
  nested = json::array({std::move(nested)});
  check_throws<ValueError>([&] { send_object(world, nested, 0); }, "more than 500 levels");
  world.barrier();
}

/// A fork has the rank's memory, but it is no rank: it may neither speak for it nor, by ending, leave for it.
TEST(Groups, ForkedCopies) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  world.barrier();
  // So small that LibTorch computes with it in one thread: a fork has none of the others.
  const at::Tensor shared = world.empty_shared({1000}, at::kFloat).fill_(world.rank());
  const auto under_way = world.irecv(at::empty({3}), world.rank(), {.tag = 77});
  std::fflush(nullptr);
  const pid_t copy = ::fork();
  if (copy == 0) {
    int code = 1;
    try {
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { world.barrier(); }, [&] { world.all_reduce(shared); }, [&] { world.progress(); },
               [&] { world.send(at::zeros({3}), 0); }, [&] { under_way->wait(); },
               [&] { world.empty_shared({3}, at::kFloat); }}) {
        check_throws<ValueError>(call, "was forked from rank " + std::to_string(world.rank()));
      }
      CHECK_EACH(shared, world.rank());  // it may read
      code = 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "fork of rank %d: %s\n", world.rank(), error.what());
    }
    std::exit(code);  // with everything that runs at exit
  }
  int status = -1;
  ::waitpid(copy, &status, 0);
  CHECK_TRUE(status == 0);
  if (world.backend_name() == "lockstep") world.send(at::ones({3}), world.rank(), {.tag = 77});
  under_way->wait();
  std::vector<int> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
  for (const int64_t count : {5, 100000}) {
    const at::Tensor tensor = of(world.rank(), count);
    world.all_reduce(tensor);
    CHECK_EQUAL(tensor, sum_of(everyone, count));
  }
}

/// One thread at a time per group, but different groups in different threads.
TEST(Groups, GroupsInThreads) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  constexpr int kThreads = 4;
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  std::vector<ProcessGroup> groups;
  for (int t = 0; t < kThreads; ++t) groups.push_back(world.new_group(everyone));
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const ProcessGroup& group = groups[static_cast<size_t>(t)];
      try {
        for (int round = 0; round < 60; ++round) {
          const int64_t count =
              std::vector<int64_t>{3, 900, 20000, 200000}[static_cast<size_t>(round + t) % 4];
          const at::Tensor tensor =
              round % 2 == 0 ? group.empty_shared({count}, at::kFloat) : at::empty({count});
          tensor.copy_(of(self + t, count));
          const auto send = group.isend(of(self * 10 + t, 3000), (self + 1) % size, {.tag = t});
          group.all_reduce(tensor);
          std::vector<int> shifted;
          for (const int r : everyone) shifted.push_back(r + t);
          CHECK_EQUAL(tensor, sum_of(shifted, count));
          const at::Tensor received = at::empty({3000});
          group.recv(received, (self + size - 1) % size, {.tag = t});
          CHECK_EQUAL(received, of((self + size - 1) % size * 10 + t, 3000));
          send->wait();
        }
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(t)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  world.barrier();
}

}  // namespace
