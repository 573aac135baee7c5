// Outputs of collectives that lie over inputs, wholly or in part, and over each other.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::world;

namespace {

using Tensors = std::vector<at::Tensor>;

/// What `rank` gives: the same on every rank that computes it.
at::Tensor numbers(int rank, int64_t count, at::ScalarType dtype) {
  return lockstep::testing::periodic(
      count, 101, [&](const at::Tensor& index) { return (index * 7 + rank * 13).remainder(101).to(dtype); });
}

at::Tensor block(const at::Tensor& whole, int64_t index, int64_t count) {
  return whole.narrow(0, index * count, count);
}

/// Calls `check` with sizes of every path: in the posts, through staging, in place, by window; with a dtype;
/// and with a function that makes a tensor in ordinary memory or in the arena.
using MakeTensor = std::function<at::Tensor(int64_t)>;
void for_each_path(const std::function<void(int64_t, at::ScalarType, const MakeTensor&)>& check) {
  const World world = lockstep::testing::world();
  for (const int64_t count : {3, 1000, 50000, 1000000}) {
    for (const at::ScalarType dtype : {at::kByte, at::kFloat, at::kDouble}) {
      if (count == 1000000 && dtype != at::kFloat) continue;
      check(count, dtype, [&](int64_t elements) { return at::empty({elements}, dtype); });
      if (world.backend_name() != "lockstep") continue;
      check(count, dtype, [&](int64_t elements) { return world.empty_shared({elements}, dtype); });
    }
  }
}

/// Both forms of a collective, on inputs made anew.
void in_both_forms(const std::function<void(bool)>& check) {
  check(false);
  check(true);
}

TEST(Overlap, AllToAllOverItsInput) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    Tensors parts;
    for (int r = 0; r < size; ++r)
      parts.push_back(block(numbers(r, size * count, dtype), self, count).clone());
    const at::Tensor expected = at::cat(parts);
    const std::vector<int64_t> splits(static_cast<size_t>(size), count);
    for (const int64_t shift : {int64_t{0}, int64_t{1}, count}) {
      in_both_forms([&](bool is_async) {
        for (const bool with_splits : {false, true}) {
          const at::Tensor memory = make(size * count + shift);
          const at::Tensor input = memory.narrow(0, 0, size * count);
          const at::Tensor output = memory.narrow(0, shift, size * count);
          input.copy_(numbers(self, size * count, dtype));
          const auto given = with_splits ? splits : std::vector<int64_t>();
          if (is_async) {
            world.all_to_all_single_async(output, input, given, given)->wait();
          } else {
            world.all_to_all_single(output, input, given, given);
          }
          CHECK_EQUAL(output, expected);
        }
      });
    }
    // Lists: what a rank sends is what it receives into.
    Tensors both;
    const at::Tensor memory = make(size * count);
    memory.copy_(numbers(self, size * count, dtype));
    for (int r = 0; r < size; ++r) both.push_back(block(memory, r, count));
    world.all_to_all(both, both);
    CHECK_EQUAL(memory, expected);
  });
}

// Rank a sends a + b + 1 rows to rank b, in place.
TEST(Overlap, UnevenAllToAllOverItsInput) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for (const int64_t columns : {1, 300, 20000}) {
    std::vector<int64_t> splits;
    const auto rows_to = [](int from, int to) { return int64_t{from} + to + 1; };
    for (int r = 0; r < size; ++r) splits.push_back(rows_to(self, r));
    const auto sent = [&](int rank) {
      int64_t rows = 0;
      for (int r = 0; r < size; ++r) rows += rows_to(rank, r);
      return numbers(rank, rows * columns, at::kLong).view({rows, columns});
    };
    Tensors parts;
    for (int r = 0; r < size; ++r) {
      int64_t first = 0;
      for (int to = 0; to < self; ++to) first += rows_to(r, to);
      parts.push_back(sent(r).narrow(0, first, rows_to(r, self)));
    }
    const at::Tensor tensor = sent(self);
    world.all_to_all_single(tensor, tensor, splits, splits);
    CHECK_EQUAL(tensor, at::cat(parts));
  }
}

TEST(Overlap, AllGatherOverItsInput) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    Tensors parts;
    for (int r = 0; r < size; ++r) parts.push_back(numbers(r, count, dtype));
    const at::Tensor expected = at::cat(parts);
    // The input is this rank's part of the output, another rank's, or lies across two of them.
    for (const int64_t first : {self * count, (self + 1) % size * count, std::min<int64_t>(1, size - 1)}) {
      in_both_forms([&](bool is_async) {
        for (const bool is_list : {false, true}) {
          const at::Tensor output = make(size * count);
          const at::Tensor input = output.narrow(0, first, count);
          input.copy_(numbers(self, count, dtype));
          Tensors list;
          for (int r = 0; r < size; ++r) list.push_back(block(output, r, count));
          if (is_list) {
            world.all_gather_async(list, input)->wait();
          } else if (is_async) {
            world.all_gather_into_tensor_async(output, input)->wait();
          } else {
            world.all_gather_into_tensor(output, input);
          }
          CHECK_EQUAL(output, expected);
        }
      });
    }
  });
}

TEST(Overlap, GatherOverItsInput) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), dst = size - 1;
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    for (const int64_t first : {dst * count, int64_t{0}, std::min<int64_t>(1, size - 1)}) {
      const at::Tensor memory = make(size * count);
      const at::Tensor input = memory.narrow(0, first, count);
      input.copy_(numbers(self, count, dtype));
      Tensors outputs;
      for (int r = 0; r < size && self == dst; ++r) outputs.push_back(block(memory, r, count));
      world.gather_async(outputs, input, {.dst = dst})->wait();
      for (size_t r = 0; r < outputs.size(); ++r) {
        CHECK_EQUAL(outputs[r], numbers(static_cast<int>(r), count, dtype));
      }
    }
  });
}

TEST(Overlap, ScatterOverItsInputs) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), src = size - 1;
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    const at::Tensor all = numbers(5, size * count, dtype);
    for (const int64_t first : {src * count, int64_t{0}, std::min<int64_t>(1, size - 1)}) {
      in_both_forms([&](bool is_async) {
        for (const bool in_order : {true, false}) {
          const at::Tensor memory = make(size * count);
          memory.copy_(all);
          Tensors inputs;  // in reverse order no two are neighbors
          for (int r = 0; r < size && self == src; ++r) {
            inputs.push_back(block(memory, in_order ? r : size - 1 - r, count));
          }
          const at::Tensor output = self == src ? memory.narrow(0, first, count) : make(count);
          if (is_async) {
            world.scatter_async(output, inputs, {.src = src})->wait();
          } else {
            world.scatter(output, inputs, {.src = src});
          }
          CHECK_EQUAL(output, block(all, in_order ? self : size - 1 - self, count));
        }
      });
    }
    // One tensor for all, which is the source's output too.
    const at::Tensor same = make(count);
    same.copy_(numbers(self, count, dtype));
    world.scatter(same, self == src ? Tensors(static_cast<size_t>(size), same) : Tensors(), {.src = src});
    CHECK_EQUAL(same, numbers(src, count, dtype));
  });
}

TEST(Overlap, ReduceScatterOverItsInput) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    Tensors all;
    for (int r = 0; r < size; ++r) all.push_back(numbers(r, size * count, dtype));
    const at::Tensor expected = block(at::stack(all).sum(0).to(dtype), self, count);
    for (const int64_t first : {self * count, (self + 1) % size * count, std::min<int64_t>(1, size - 1)}) {
      in_both_forms([&](bool is_async) {
        for (const bool is_list : {false, true}) {
          const at::Tensor input = make(size * count);
          input.copy_(all[static_cast<size_t>(self)]);
          const at::Tensor output = input.narrow(0, first, count);
          if (is_list) {
            world.reduce_scatter(output, input.chunk(size));
          } else if (is_async) {
            world.reduce_scatter_tensor_async(output, input)->wait();
          } else {
            world.reduce_scatter_tensor(output, input);
          }
          CHECK_EQUAL(output, expected);
        }
      });
    }
  });
}

// Each operation's output lies over the input of the other one.
TEST(Overlap, CoalescedOverEachOthersInputs) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    const auto given = [&](int rank, int which, int64_t elements) {
      return numbers(rank + 50 * which, elements, dtype);
    };
    const at::Tensor a = make(size * count), b = make(size * count);
    block(a, self, count).copy_(given(self, 1, count));
    block(b, self, count).copy_(given(self, 0, count));
    world.all_gather_into_tensor_coalesced({a, b}, {block(b, self, count), block(a, self, count)});
    for (int r = 0; r < size; ++r) {
      CHECK_EQUAL(block(a, r, count), given(r, 0, count));
      CHECK_EQUAL(block(b, r, count), given(r, 1, count));
    }
    a.copy_(given(self, 0, size * count));
    b.copy_(given(self, 1, size * count));
    const at::Tensor into_b = block(b, 0, count), into_a = block(a, size - 1, count);
    world.reduce_scatter_tensor_coalesced({into_b, into_a}, {a, b});
    for (const int which : {0, 1}) {
      Tensors all;
      for (int r = 0; r < size; ++r) all.push_back(given(r, which, size * count));
      const at::Tensor sum = block(at::stack(all).sum(0).to(dtype), self, count);
      CHECK_EQUAL((which == 0 ? into_b : into_a), sum);
    }
  });
}

// To the right from where the message from the left goes.
TEST(Overlap, MessagesOverEachOther) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  ONLY_IF(world.size() > 1 || world.backend_name() == "lockstep");  // Gloo does not send to itself
  const int right = (self + 1) % size, left = (self + size - 1) % size;
  for_each_path([&](int64_t count, at::ScalarType dtype, const MakeTensor& make) {
    for (const int64_t shift : {int64_t{0}, int64_t{1}}) {
      const at::Tensor memory = make(count + shift);
      const at::Tensor sent = memory.narrow(0, 0, count), received = memory.narrow(0, shift, count);
      sent.copy_(numbers(self, count, dtype));
      const std::vector<P2POp> operations{{P2POp::Kind::irecv, received, left},
                                          {P2POp::Kind::isend, sent, right}};
      for (const auto& work : world.batch_isend_irecv(operations)) work->wait();
      CHECK_EQUAL(received, numbers(left, count, dtype));
    }
  });
}

TEST(Overlap, OutputsThatOverlapAreRefused) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for (const int64_t count : {4, 50000}) {
    const at::Tensor t = at::zeros({count}), input = at::zeros({count});
    const at::Tensor expanded = at::zeros({1}).expand({count});
    const std::string itself = "some of its elements are one place in memory";
    check_throws<ValueError>([&] { world.all_reduce(expanded); }, "all_reduce: the tensor has shape [");
    check_throws<ValueError>([&] { world.all_reduce_async(expanded); }, itself);
    check_throws<ValueError>([&] { world.recv(expanded, self); }, itself);
    check_throws<ValueError>([&] { world.irecv(expanded, self); }, itself);
    check_throws<ValueError>([&] { world.reduce_scatter_tensor(expanded, at::zeros({count * size})); },
                             itself);
    check_throws<ValueError>([&] { world.all_gather_into_tensor(at::zeros({1}).expand({count * size}), t); },
                             itself);
    // Windows that overlap, as unfold() makes them.
    check_throws<ValueError>([&] { world.all_reduce(at::zeros({count + 1}).unfold(0, 2, 1)); }, itself);
    const std::string each_other = "the outputs overlap each other";
    check_throws<ValueError>([&] { world.all_reduce_coalesced({t, at::zeros({3}), t}); }, each_other);
    const at::Tensor larger = at::zeros({count + 1});
    const Tensors shifted{larger.narrow(0, 0, count), larger.narrow(0, 1, count)};
    check_throws<ValueError>([&] { world.all_reduce_coalesced(shifted); }, each_other);
    if (size == 1) continue;
    const Tensors twice(static_cast<size_t>(size), t);
    check_throws<ValueError>([&] { world.all_gather_async(twice, input); }, each_other);
    check_throws<ValueError>([&] { world.all_to_all(twice, Tensors(static_cast<size_t>(size), input)); },
                             each_other);
    const at::Tensor both = at::zeros({count * size});
    check_throws<ValueError>(
        [&] {
          world.all_gather_into_tensor_coalesced({both, both}, {t, input});
        },
        each_other);
    check_throws<ValueError>(
        [&] {
          world.reduce_scatter_tensor_coalesced({t, t}, {both, both.clone()});
        },
        each_other);
    check_throws<ValueError>(
        [&] {
          world.batch_isend_irecv({{P2POp::Kind::irecv, t, self}, {P2POp::Kind::irecv, t, self}});
        },
        each_other);
  }
  // All were refused before anything was sent.
  const at::Tensor sum = at::zeros({5}) + 1;
  world.all_reduce(sum);
  CHECK_EACH(sum, size);
}

// Their ranges meet, their elements do not.
TEST(Overlap, ColumnsOfAMatrixAreApart) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for (const int64_t count : {3, 1000, 50000}) {
    const at::Tensor matrix = at::zeros({count, size}), sums = at::zeros({count, 2});
    world.all_gather_async(matrix.unbind(1), numbers(self, count, at::kFloat))->wait();
    for (int r = 0; r < size; ++r) CHECK_EQUAL(matrix.select(1, r), numbers(r, count, at::kFloat));
    sums.copy_(numbers(self, 2 * count, at::kFloat).view({count, 2}));
    world.all_reduce_coalesced(sums.unbind(1));
    at::Tensor expected = at::zeros({count, 2});
    for (int r = 0; r < size; ++r) expected += numbers(r, 2 * count, at::kFloat).view({count, 2});
    CHECK_EQUAL(sums, expected);
    // Every third element: gaps within one tensor.
    const at::Tensor gaps = at::zeros({count, 3}).select(1, 1);
    gaps.copy_(numbers(self, count, at::kFloat));
    world.broadcast(gaps, {.src = size - 1});
    CHECK_EQUAL(gaps, numbers(size - 1, count, at::kFloat));
  }
}

TEST(Overlap, WhatOverlapsItself) {
  CHECK_TRUE(!overlaps_itself(at::zeros({3, 4})));
  CHECK_TRUE(!overlaps_itself(at::zeros({3, 4}).t()));
  CHECK_TRUE(!overlaps_itself(at::zeros({1, 4}).expand({1, 4})));
  CHECK_TRUE(!overlaps_itself(at::zeros({0, 4})));
  CHECK_TRUE(overlaps_itself(at::zeros({1, 4}).expand({3, 4})));
  CHECK_TRUE(overlaps_itself(at::zeros({}).expand({2})));
  CHECK_TRUE(!overlaps_itself(at::zeros({1}).expand({1})));
  CHECK_TRUE(!overlaps_itself(at::Tensor()));
  const at::Tensor memory = at::zeros({100});
  CHECK_TRUE(overlaps_itself(memory.as_strided({4, 3}, {2, 1})));
  CHECK_TRUE(overlaps_itself(memory.as_strided({3, 3}, {2, 2})));
  CHECK_TRUE(!overlaps_itself(memory.as_strided({4, 3}, {3, 1})));
  // Neither stride goes beyond the other's reach, and no two elements meet.
  CHECK_TRUE(!overlaps_itself(memory.as_strided({2, 3}, {3, 2})));
}

/// A random view into `memory`, whose elements may share places.
at::Tensor random_view(const at::Tensor& memory, std::minstd_rand& random) {
  constexpr at::ScalarType kDTypes[] = {at::kByte, at::kShort, at::kFloat};
  const at::Tensor typed = memory.view(kDTypes[random() % 3]);
  std::vector<int64_t> sizes, strides;
  int64_t last = 0;
  for (auto dimensions = 1 + random() % 3; dimensions > 0; --dimensions) {
    constexpr int64_t kStrides[] = {1, 1, 2, 3, 4, 6, 8, 12, 24, 36, 48};
    const int64_t stride = kStrides[random() % 11];
    const int64_t room = (typed.numel() - 1 - last) / stride;
    sizes.push_back(1 + static_cast<int64_t>(random()) % std::min<int64_t>(room + 1, 12));
    strides.push_back(stride);
    last += (sizes.back() - 1) * stride;
  }
  return typed.as_strided(sizes, strides, static_cast<int64_t>(random()) % (typed.numel() - last));
}

/// How often each byte of `memory` belongs to an element of `views`.
std::vector<int> uses_of(const at::Tensor& memory, const Tensors& views) {
  std::vector<int> uses(memory.nbytes());
  for (const at::Tensor& view : views) {
    const auto* const begin = static_cast<const char*>(memory.const_data_ptr());
    const auto first = static_cast<const char*>(view.const_data_ptr()) - begin;
    const auto element = static_cast<int64_t>(view.element_size());
    for (int64_t n = 0; n < view.numel(); ++n) {
      int64_t place = 0, rest = n;
      for (int64_t d = view.dim() - 1; d >= 0; --d) {
        place += rest % view.size(d) * view.stride(d);
        rest /= view.size(d);
      }
      for (int64_t i = 0; i < element; ++i) ++uses[static_cast<size_t>(first + place * element + i)];
    }
  }
  return uses;
}

TEST(Overlap, RandomViewsAreToldApart) {
  std::minstd_rand random(7);
  const at::Tensor memory = at::zeros({1024}, at::kByte);
  int apart = 0, shared = 0;
  for (int n = 0; n < 2000; ++n) {
    const auto count = 1 + random() % 3;
    Tensors views;
    while (views.size() < count) views.push_back(random_view(memory, random));
    const auto share = [&](const Tensors& some) {
      const auto uses = uses_of(memory, some);
      return *std::max_element(uses.begin(), uses.end()) > 1;
    };
    const bool expected = share(views);
    bool refused = false;
    try {
      check_apart("test", views);
    } catch (const ValueError&) {
      refused = true;
    }
    CHECK_TRUE(refused == expected);
    ++(expected ? shared : apart);
    CHECK_TRUE(overlaps_itself(views[0]) == share({views[0]}));
    if (views.size() < 2) continue;
    const auto first = uses_of(memory, {views[0]}), second = uses_of(memory, {views[1]});
    bool meet = false;
    for (size_t i = 0; i < first.size(); ++i) meet = meet || (first[i] > 0 && second[i] > 0);
    CHECK_TRUE(!meet || !lie_apart(views[0], views[1]));
  }
  CHECK_TRUE(apart > 200);
  CHECK_TRUE(shared > 200);
}

// Then nobody has to look at every element.
TEST(Overlap, StridesTellViewsApart) {
  const auto all_lie_apart = [](const Tensors& views) {
    for (size_t i = 0; i < views.size(); ++i) {
      for (size_t j = 0; j < views.size(); ++j) {
        if (i != j && !lie_apart(views[i], views[j])) return false;
      }
    }
    return true;
  };
  const at::Tensor tensor = at::zeros({8, 12, 10});
  for (const int64_t dimension : {0, 1, 2}) {
    for (const int64_t parts : {2, 3, 4}) CHECK_TRUE(all_lie_apart(tensor.chunk(parts, dimension)));
    CHECK_TRUE(all_lie_apart(tensor.unbind(dimension)));
    CHECK_TRUE(all_lie_apart(tensor.permute({2, 0, 1}).chunk(2, dimension)));
    CHECK_TRUE(all_lie_apart(tensor.slice(1, 3, 9).chunk(3, dimension)));
    for (const int64_t step : {2, 3}) {
      Tensors slices;
      for (int64_t i = 0; i < step; ++i) slices.push_back(tensor.slice(dimension, i, 1000, step));
      CHECK_TRUE(all_lie_apart(slices));
      // Every second one of two dimensions.
      slices.clear();
      for (int64_t i = 0; i < step * step; ++i) {
        slices.push_back(
            tensor.slice(dimension, i / step, 1000, step).slice((dimension + 1) % 3, i % step, 1000, step));
      }
      CHECK_TRUE(all_lie_apart(slices));
    }
  }
  CHECK_TRUE(!lie_apart(tensor, tensor));
  CHECK_TRUE(!lie_apart(tensor.select(2, 1), tensor.narrow(2, 1, 3)));
  CHECK_TRUE(lie_apart(tensor, at::zeros({3})));
  CHECK_TRUE(lie_apart(tensor.narrow(0, 0, 0), tensor));
}

}  // namespace
