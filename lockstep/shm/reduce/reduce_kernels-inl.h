// Reductions as vectors, for the sources that are compiled once for each instruction set (Highway's
// foreach_target), which include this once for each. Several sources, since one takes too long.
#if defined(LOCKSTEP_SHM_REDUCE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_SHM_REDUCE_KERNELS_INL_H_
#undef LOCKSTEP_SHM_REDUCE_KERNELS_INL_H_
#else
#define LOCKSTEP_SHM_REDUCE_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "lockstep/shm/layout.h"
#include "lockstep/shm/reduce/reduce_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::shm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t left_ranks(size_t n) {
  size_t power = 1;
  while (power * 2 < n) power *= 2;
  return power;
}

// How a storage type becomes vectors of the type that is computed in, and back.
template <class T>
struct Native {  // computed in the stored type
  using Stored = T;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V load(const T* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE void store(V v, T* p) { hn::StoreU(v, D(), p); }
};

struct Half {
  using Stored = uint16_t;
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  // Below AVX2 Highway cuts off where it should round, and knows neither infinity nor NaN: the compiler's
  // own conversion, lane by lane.
  static HWY_INLINE V load(const uint16_t* p) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::Lanes(D()); ++i) {
      _Float16 half;
      std::memcpy(&half, p + i, sizeof(half));
      lanes[i] = static_cast<float>(half);
    }
    return hn::Load(D(), lanes);
  }
  static HWY_INLINE void store(V v, uint16_t* p) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    hn::Store(v, D(), lanes);
    for (size_t i = 0; i < hn::Lanes(D()); ++i) {
      const auto half = static_cast<_Float16>(lanes[i]);
      std::memcpy(p + i, &half, sizeof(half));
    }
  }
#else
  using H = hn::Rebind<hwy::float16_t, D>;
  static HWY_INLINE V load(const uint16_t* p) {
    return hn::PromoteTo(D(), hn::LoadU(H(), reinterpret_cast<const hwy::float16_t*>(p)));
  }
  static HWY_INLINE void store(V v, uint16_t* p) {
    hn::StoreU(hn::DemoteTo(H(), v), H(), reinterpret_cast<hwy::float16_t*>(p));
  }
#endif
};

struct Brain {
  using Stored = uint16_t;
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using U = hn::RebindToUnsigned<D>;
  using H = hn::Rebind<uint16_t, D>;
  static HWY_INLINE V load(const uint16_t* p) {
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(U(), hn::LoadU(H(), p))));
  }
  static HWY_INLINE void store(V v, uint16_t* p) {
    const U u;
    const auto bits = hn::BitCast(u, v);
    const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(u, 0x7FFF))));
    // Rounding could carry a NaN into infinity: keep it a quiet NaN.
    const auto quiet = hn::ShiftRight<16>(hn::Or(bits, hn::Set(u, 0x400000)));
    const auto is_nan = hn::RebindMask(u, hn::IsNaN(v));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(H(), hn::BitCast(hn::RebindToSigned<U>(), result)), H(), p);
  }
};

struct Sum {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    using T = hn::TFromV<V>;
    if constexpr (sizeof(T) != 1) {
      return hn::Mul(a, b);
    } else {
#if HWY_TARGET == HWY_SCALAR
      return hn::Set(hn::DFromV<V>(), static_cast<T>(hn::GetLane(a) * hn::GetLane(b)));
#else
      // No processor multiplies bytes: the low byte of a 16-bit product depends on the factors' low bytes
      // only.
      const hn::DFromV<V> bytes;
      const hn::RepartitionToWide<hn::RebindToUnsigned<hn::DFromV<V>>> wide;
      const auto a16 = hn::BitCast(wide, a), b16 = hn::BitCast(wide, b);
      const auto low = hn::And(hn::Mul(a16, b16), hn::Set(wide, 0x00FF));
      const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(bytes, hn::Or(low, high));
#endif
    }
  }
};

struct And {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::And(a, b);
  }
};

struct Or {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Or(a, b);
  }
};

struct Xor {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Xor(a, b);
  }
};

struct Min {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, hn::Min(a, b)));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, hn::Max(a, b)));
    } else {
      return hn::Max(a, b);
    }
  }
};

// The tree, unrolled for up to eight ranks: all loads and sums stay in registers.
template <class Type, class Op, size_t kRanks>
HWY_INLINE typename Type::V tree(const typename Type::Stored* const* sources, size_t i) {
  if constexpr (kRanks == 1) {
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): it does not see that there are ranks
    return Type::load(sources[0] + i);
  } else {
    constexpr size_t kLeft = left_ranks(kRanks);
    return Op::combine(tree<Type, Op, kLeft>(sources, i), tree<Type, Op, kRanks - kLeft>(sources + kLeft, i));
  }
}

// This computes the same tree for a number of ranks known only at run time.
template <class Type, class Op>
typename Type::V tree_of(const typename Type::Stored* const* sources, size_t ranks, size_t i) {
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): it does not see that there are ranks
  if (ranks == 1) return Type::load(sources[0] + i);
  if (ranks == 2) return tree<Type, Op, 2>(sources, i);
  if (ranks == 4) return tree<Type, Op, 4>(sources, i);
  const size_t left = left_ranks(ranks);
  return Op::combine(tree_of<Type, Op>(sources, left, i), tree_of<Type, Op>(sources + left, ranks - left, i));
}

template <class Type>
HWY_INLINE typename Type::V finish(typename Type::V sum, bool average, size_t ranks) {
  using T = hn::TFromD<typename Type::D>;
  if constexpr (hwy::IsFloat<T>()) {
    if (average) return hn::Div(sum, hn::Set(typename Type::D(), static_cast<T>(ranks)));
  }
  return sum;
}

template <class Type, class Op, size_t kRanks>
void run(const typename Type::Stored* const* sources, size_t ranks,
         typename Type::Stored* const* destinations, size_t destination_count, size_t count, bool average) {
  using Stored = typename Type::Stored;
  const size_t lanes = hn::Lanes(typename Type::D());
  const auto value_at = [&](const Stored* const* from, size_t i) {
    if constexpr (kRanks != 0) {
      return finish<Type>(tree<Type, Op, kRanks>(from, i), average, kRanks);
    } else {
      return finish<Type>(tree_of<Type, Op>(from, ranks, i), average, ranks);
    }
  };
  size_t i = 0;
  if constexpr (kRanks != 0) {
    if (destination_count == kRanks) {
      // Pointers of its own, since a store could change those that were passed. And whole cache lines: where
      // many buffers lie at the same place of a page, half a line may be gone from the cache before the
      // other's turn.
      const Stored* from[kRanks];
      Stored* to[kRanks];
      std::copy_n(sources, kRanks, from);
      std::copy_n(destinations, kRanks, to);
      for (; i + 2 * lanes <= count; i += 2 * lanes) {
        const auto a = value_at(from, i);
        const auto b = value_at(from, i + lanes);
        for (size_t d = 0; d < kRanks; ++d) {
          Type::store(a, to[d] + i);
          Type::store(b, to[d] + i + lanes);
        }
      }
    }
  }
  for (; i + lanes <= count; i += lanes) {
    const auto value = value_at(sources, i);
    for (size_t d = 0; d < destination_count; ++d) Type::store(value, destinations[d] + i);
  }
  if (i == count) return;
  // The tail goes through padded copies, so that it takes the very same vector arithmetic.
  constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(Stored);
  Stored padded[kMaxRanks][kMaxLanes];
  const Stored* padded_sources[kMaxRanks];
  for (size_t r = 0; r < ranks; ++r) {
    std::fill(std::copy(sources[r] + i, sources[r] + count, padded[r]), std::end(padded[r]), Stored{});
    padded_sources[r] = padded[r];
  }
  Stored result[kMaxLanes];
  Type::store(value_at(padded_sources, 0), result);
  for (size_t d = 0; d < destination_count; ++d) std::copy(result, result + (count - i), destinations[d] + i);
}

template <class Type>
void run_type(ReduceOp reduction, const void* const* sources, size_t ranks, void* const* destinations,
              size_t destination_count, size_t count) {
  using Stored = typename Type::Stored;
  const auto* from = reinterpret_cast<const Stored* const*>(sources);
  const auto* to = reinterpret_cast<Stored* const*>(destinations);
  const bool average = reduction == ReduceOp::AVG;
  switch (reduction) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
    case ReduceOp::PREMUL_SUM:
      if constexpr (std::is_same_v<Type, Native<float>>) {
        if (ranks == 2) return run<Type, Sum, 2>(from, ranks, to, destination_count, count, average);
        if (ranks == 4) return run<Type, Sum, 4>(from, ranks, to, destination_count, count, average);
        if (ranks == 8) return run<Type, Sum, 8>(from, ranks, to, destination_count, count, average);
      }
      return run<Type, Sum, 0>(from, ranks, to, destination_count, count, average);
    case ReduceOp::PRODUCT:
      return run<Type, Product, 0>(from, ranks, to, destination_count, count, average);
    case ReduceOp::MIN:
      return run<Type, Min, 0>(from, ranks, to, destination_count, count, average);
    case ReduceOp::MAX:
      return run<Type, Max, 0>(from, ranks, to, destination_count, count, average);
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      return;  // run_bitwise's
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::shm
HWY_AFTER_NAMESPACE();

#endif
