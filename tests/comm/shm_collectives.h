// One call of each collective of the shared-memory core, large and small.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/shm/group/group.h"

namespace lockstep::shm {

/// One call, as all of kRanks ranks make it.
struct Collective {
  const char* name;
  std::function<void(Group&, std::chrono::milliseconds)> call;
};

constexpr size_t kLarge = 100000;  // in place; the small ones travel by copy
constexpr int kRanks = 3;
constexpr int kVictim = 1;  // of tests in which a rank dies; root of some of the calls

inline std::vector<Group::Copy> parts_of_all(std::vector<float>& into, size_t count) {
  std::vector<Group::Copy> copies;
  for (size_t r = 0; r < kRanks; ++r) {
    copies.push_back({static_cast<int>(r), 0, into.data() + r * count, count * sizeof(float)});
  }
  return copies;
}

inline void exchange(Group& group, OpKind kind, bool sends, bool receives, int root,
                     std::chrono::milliseconds timeout) {
  std::vector<float> sent(kLarge), received(kRanks * kLarge);
  const auto copies = parts_of_all(received, kLarge);
  const bool from_root = kind == OpKind::broadcast || kind == OpKind::scatter;
  group.exchange({.kind = kind,
                  .dtype = DType::float32,
                  .count = kLarge,
                  .root = root,
                  .sent = sent.data(),
                  .sent_bytes = sends ? kLarge * sizeof(float) : 0,
                  .copies = from_root ? &copies[static_cast<size_t>(root)] : copies.data(),
                  .copy_count = !receives   ? size_t{0}
                                : from_root ? size_t{1}
                                            : copies.size()},
                 timeout);
}

inline void reduce_of(Group& group, size_t count, std::chrono::milliseconds timeout) {
  std::vector<float> data(count, 1.0F);
  group.wait(group.start_all_reduce(data.data(), count, DType::float32, ReduceOp::SUM), timeout);
}

inline const std::vector<Collective>& collectives() {
  using ms = std::chrono::milliseconds;
  static const std::vector<Collective> all{
      {"barrier", [](Group& g, ms t) { g.barrier(t); }},
      {"all_reduce_inline", [](Group& g, ms t) { reduce_of(g, 4, t); }},
      {"all_reduce_staged", [](Group& g, ms t) { reduce_of(g, 1000, t); }},
      {"all_reduce", [](Group& g, ms t) { reduce_of(g, kLarge, t); }},
      {"reduce",
       [](Group& g, ms t) {
         std::vector<float> data(kLarge);
         reduce(g, data.data(), kLarge, DType::float32, ReduceOp::MAX, 0, t);
       }},
      {"reduce_scatter",
       [](Group& g, ms t) {
         std::vector<float> input(kRanks * kLarge), output(kLarge);
         reduce_scatter(g, input.data(), output.data(), kLarge, DType::float32, ReduceOp::SUM, t);
       }},
      {"broadcast_from_victim",
       [](Group& g, ms t) {
         exchange(g, OpKind::broadcast, g.rank() == kVictim, g.rank() != kVictim, kVictim, t);
       }},
      {"broadcast_to_victim",
       [](Group& g, ms t) { exchange(g, OpKind::broadcast, g.rank() == 0, g.rank() != 0, 0, t); }},
      {"scatter", [](Group& g, ms t) { exchange(g, OpKind::scatter, g.rank() == 0, true, 0, t); }},
      {"gather", [](Group& g, ms t) { exchange(g, OpKind::gather, true, g.rank() == 0, 0, t); }},
      {"gather_at_victim",
       [](Group& g, ms t) { exchange(g, OpKind::gather, true, g.rank() == kVictim, kVictim, t); }},
      {"all_gather", [](Group& g, ms t) { exchange(g, OpKind::all_gather, true, true, 0, t); }},
      {"all_to_all", [](Group& g, ms t) { exchange(g, OpKind::all_to_all, true, true, 0, t); }},
      {"send_recv",
       [](Group& g, ms t) {
         std::vector<float> data(kLarge), into(kLarge);
         const auto bytes = kLarge * sizeof(float);
         PointToPoint::Request send{.is_send = true,
                                    .peer = (g.rank() + 1) % kRanks,
                                    .tag = 4,
                                    .data = reinterpret_cast<std::byte*>(data.data()),
                                    .bytes = bytes};
         PointToPoint::Request receive{.peer = (g.rank() + 2) % kRanks,
                                       .tag = 4,
                                       .data = reinterpret_cast<std::byte*>(into.data()),
                                       .bytes = bytes};
         g.start(send);
         g.start(receive);
         g.wait(receive, t);
         g.wait(send, t);
       }},
  };
  return all;
}

}  // namespace lockstep::shm
