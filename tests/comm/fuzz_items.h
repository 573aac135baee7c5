// The operations of the fuzz test: how one is started with contents that its check knows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/shm/group/group.h"
#include "tests/comm/fuzz_values.h"

namespace lockstep::shm {

using Random = std::mt19937_64;

inline size_t pick(Random& random, size_t below) { return random() % below; }
inline bool chance(Random& random, size_t percent) { return pick(random, 100) < percent; }
inline size_t between(Random& random, size_t least, size_t most) {
  return least + pick(random, most - least + 1);
}

/// Memory of an operation, in the segment or elsewhere.
struct Buffer {
  Buffer(Group& group_, size_t bytes_, bool inside)
      : group(group_), bytes(bytes_), outside(inside ? 0 : bytes + 8) {
    data = inside ? group.allocate(std::max<size_t>(bytes, 1)) : outside.data();
    is_inside = inside;
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    scribble();
    if (is_inside) group.release(data);
  }
  void scribble() const { std::memset(data, 0xE5, bytes); }
  Group& group;
  size_t bytes;
  Bytes outside;
  std::byte* data;
  bool is_inside;
};

/// An operation that this rank has started.
struct Item {
  Group* group = nullptr;
  std::string what;
  Group::Sequence sequence = 0;  // 0: a message
  PointToPoint::Request request;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<Copy> copies;
  std::vector<Part> parts;
  std::vector<int64_t> splits, table;
  std::function<std::vector<Copy>()> late_copies;
  std::function<void(Item&)> check;
  bool is_done() const { return sequence != 0 ? group->has_ended(sequence) : group->has_ended(request); }
};

/// Starts a rank's collectives.
class FuzzItems {
 protected:
  FuzzItems(uint64_t seed, int rank, bool small_arena)
      : seed_(seed), own_(seed * 31 + static_cast<uint64_t>(rank) + 1), small_arena_(small_arena) {}

  Buffer& add_buffer(Item& item, size_t bytes) {
    // Tensors that lie about in a small arena would leave no gap for a window.
    const bool inside = !small_arena_ && bytes <= size_t{8} << 20 && chance(own_, 50);
    item.buffers.push_back(std::make_unique<Buffer>(*item.group, bytes, inside));
    return *item.buffers.back();
  }

  static void expect_bytes(const Item& item, const std::byte* data, const Bytes& expected) {
    if (std::equal(expected.begin(), expected.end(), data)) return;
    const auto at = std::mismatch(expected.begin(), expected.end(), data).first - expected.begin();
    ADD_FAILURE() << item.what << ": wrong from byte " << at << " of " << expected.size();
  }

  void start_reduction(Item& item, size_t kind, uint64_t number, DType dtype, size_t count, int root,
                       uint64_t salt) {
    Group& group = *item.group;
    constexpr ReduceOp kReductions[] = {ReduceOp::SUM, ReduceOp::AVG,  ReduceOp::PRODUCT,
                                        ReduceOp::MIN, ReduceOp::MAX,  ReduceOp::BAND,
                                        ReduceOp::BOR, ReduceOp::BXOR, ReduceOp::PREMUL_SUM};
    ReduceOp reduction = kReductions[salt % std::size(kReductions)];
    const bool inexact = reduction == ReduceOp::AVG && dtype == DType::bfloat16;
    if (!is_supported(dtype, reduction) || inexact) reduction = ReduceOp::SUM;
    const Numbers numbers{seed_, number, dtype, reduction, group.size()};
    const size_t element = element_size(dtype);
    const int rank = group.rank();
    if (kind == 3) {
      Buffer& input = add_buffer(item, count * element * static_cast<size_t>(group.size()));
      Buffer& output = add_buffer(item, count * element);
      numbers.give(input.data, count * static_cast<size_t>(group.size()), rank);
      item.sequence = group.start_reduce_scatter(input.data, output.data, count, dtype, reduction);
      item.check = [numbers, count, rank](Item& done) {
        expect_bytes(done, done.buffers[1]->data, numbers.result(static_cast<size_t>(rank) * count, count));
      };
      return;
    }
    Buffer& data = add_buffer(item, count * element);
    numbers.give(data.data, count, rank);
    if (kind == 4) {  // every rank some parts
      const size_t unit = std::max<size_t>(1, count / 7);
      for (size_t first = 0, n = salt; first < count; first += unit, ++n) {
        if (static_cast<int>(n % static_cast<size_t>(group.size())) == rank) {
          item.parts.push_back({first, std::min(unit, count - first)});
        }
      }
      item.sequence =
          group.start_reduce_parts(data.data, count, dtype, reduction, item.parts.data(), item.parts.size());
      item.check = [numbers, element, count, rank](Item& done) {
        Bytes expected(count * element);
        numbers.give(expected.data(), count, rank);
        for (const Part& part : done.parts) {
          const Bytes reduced = numbers.result(part.first, part.count);
          std::copy(reduced.begin(), reduced.end(),
                    expected.begin() + static_cast<ptrdiff_t>(part.first * element));
        }
        expect_bytes(done, done.buffers[0]->data, expected);
      };
      return;
    }
    const bool to_all = kind < 2;
    item.sequence = to_all ? group.start_all_reduce(data.data, count, dtype, reduction)
                           : group.start_reduce(data.data, count, dtype, reduction, root);
    item.check = [numbers, count, has_result = to_all || root == rank](Item& done) {
      if (has_result) expect_bytes(done, done.buffers[0]->data, numbers.result(0, count));
    };
  }

  /// Bytes [offset, offset + bytes) of what `rank` gives.
  Bytes given(uint64_t number, int rank, size_t offset, size_t bytes) const {
    Bytes all(offset + bytes);
    fill_bytes(all.data(), all.size(), key_of(seed_, number, rank));
    return {all.begin() + static_cast<ptrdiff_t>(offset), all.end()};
  }

  void start_from_one_or_to_one(Item& item, size_t kind, uint64_t number, DType dtype, size_t count,
                                int root) {
    Group& group = *item.group;
    const bool is_root = group.rank() == root;
    const size_t bytes = count * element_size(dtype);
    const auto ranks = static_cast<size_t>(group.size());
    const auto self = static_cast<size_t>(group.rank());
    const bool scatters = kind == 8;
    const bool broadcasts = kind == 6 || kind == 7;
    const size_t sent = broadcasts ? (is_root ? bytes : 0) : scatters ? (is_root ? bytes * ranks : 0) : bytes;
    const size_t got = broadcasts ? (is_root ? 0 : bytes) : scatters ? bytes : is_root ? bytes * ranks : 0;
    Buffer& from = add_buffer(item, sent);
    Buffer& to = add_buffer(item, got);
    fill_bytes(from.data, sent, key_of(seed_, number, group.rank()));
    const size_t offset = scatters ? self * bytes : 0;
    if (kind == 9) {
      for (size_t r = 0; is_root && r < ranks; ++r)
        item.copies.push_back({static_cast<int>(r), 0, to.data + r * bytes, bytes});
    } else if (got > 0) {
      item.copies.push_back({root, offset, to.data, bytes});
    }
    item.sequence = group.start_exchange({.kind = broadcasts ? OpKind::broadcast
                                                  : scatters ? OpKind::scatter
                                                             : OpKind::gather,
                                          .dtype = dtype,
                                          .count = scatters ? count * ranks : count,
                                          .root = root,
                                          .sent = from.data,
                                          .sent_bytes = sent,
                                          .copies = item.copies.data(),
                                          .copy_count = item.copies.size()});
    item.check = [this, number, root, kind, offset, bytes, got, rank = group.rank()](Item& done) {
      expect_bytes(done, done.buffers[0]->data, given(number, rank, 0, done.buffers[0]->bytes));
      for (size_t r = 0; got > 0 && r * bytes < got; ++r) {
        expect_bytes(done, done.buffers[1]->data + r * bytes,
                     given(number, kind == 9 ? static_cast<int>(r) : root, offset, bytes));
      }
    };
  }

  /// All-gather, all-to-all of equal parts and of parts whose sizes an operation before it tells.
  void start_all_to_all(Item& item, size_t kind, uint64_t number, DType dtype, size_t count, uint64_t salt) {
    Group& group = *item.group;
    const size_t element = element_size(dtype);
    const auto ranks = static_cast<size_t>(group.size());
    const auto self = static_cast<size_t>(group.rank());
    const bool gathers = kind == 10;
    const bool uneven = kind == 12;
    // Elements from one rank to another.
    const auto part = [=](size_t from, size_t to) {
      return uneven ? (count + 1) * ((from * 3 + to * 5 + salt) % 4) / 2 : count;
    };
    const auto offset = [&](size_t from, size_t to) {
      size_t sum = 0;
      for (size_t r = 0; !gathers && r < to; ++r) sum += part(from, r);
      return sum * element;
    };
    size_t got = 0;
    for (size_t r = 0; r < ranks; ++r) got += part(r, self) * element;
    Buffer& from = add_buffer(item, gathers ? count * element : offset(self, ranks));
    Buffer& to = add_buffer(item, got);
    fill_bytes(from.data, from.bytes, key_of(seed_, number, group.rank()));
    Group::Exchange exchange{.kind = gathers ? OpKind::all_gather : OpKind::all_to_all,
                             .dtype = dtype,
                             .count = uneven    ? 0
                                      : gathers ? count
                                                : count * ranks,
                             .sent = from.data,
                             .sent_bytes = from.bytes};
    std::vector<Copy> wanted;
    std::byte* next = to.data;
    for (size_t r = 0; r < ranks; ++r) {
      wanted.push_back({static_cast<int>(r), offset(r, self), next, part(r, self) * element});
      next += wanted.back().bytes;
    }
    if (uneven) {
      item.table.resize(ranks * ranks);
      for (size_t r = 0; r < ranks; ++r) {
        item.splits.push_back(static_cast<int64_t>(part(self, r)));
        item.copies.push_back(
            {static_cast<int>(r), 0, item.table.data() + r * ranks, ranks * sizeof(int64_t)});
      }
      group.start_exchange({.kind = OpKind::all_gather,
                            .dtype = DType::int64,
                            .count = ranks,
                            .sent = item.splits.data(),
                            .sent_bytes = ranks * sizeof(int64_t),
                            .copies = item.copies.data(),
                            .copy_count = item.copies.size()});
      item.late_copies = [&item, wanted, ranks, self, element] {
        for (size_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(static_cast<size_t>(item.table[r * ranks + self]) * element, wanted[r].bytes)
              << item.what;
        }
        return wanted;
      };
      exchange.late_copies = &item.late_copies;
    } else {
      item.copies = wanted;
      exchange.copies = item.copies.data();
      exchange.copy_count = ranks;
    }
    item.sequence = group.start_exchange(exchange);
    item.check = [this, number, wanted, rank = group.rank()](Item& done) {
      expect_bytes(done, done.buffers[0]->data, given(number, rank, 0, done.buffers[0]->bytes));
      for (const Copy& copy : wanted) {
        expect_bytes(done, static_cast<std::byte*>(copy.destination),
                     given(number, copy.source, copy.source_offset, copy.bytes));
      }
    };
  }

  uint64_t seed_;
  Random own_;  // this rank's alone
  bool small_arena_;
};

}  // namespace lockstep::shm
