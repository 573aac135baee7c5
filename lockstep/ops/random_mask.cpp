#include "lockstep/ops/random_mask.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

namespace lockstep::ops {
namespace {

static_assert(std::endian::native == std::endian::little);

using State = std::array<uint32_t, at::MERSENNE_STATE_N>;
constexpr int kN = at::MERSENNE_STATE_N, kM = at::MERSENNE_STATE_M;

uint32_t twist(uint32_t u, uint32_t v) {
  return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ (-(v & 1U) & at::MATRIX_A);
}

/// The next 624 words of mt19937. Loops that a compiler can vectorize: each reads what lies 1 ahead, and 397 ahead or 227 behind.
void next_state(State& state) {
  uint32_t* const p = state.data();
  for (int i = 0; i < kN - kM; ++i) p[i] = p[i + kM] ^ twist(p[i], p[i + 1]);
  for (int i = kN - kM; i < kN - 1; ++i) p[i] = p[i + kM - kN] ^ twist(p[i], p[i + 1]);
  p[kN - 1] = p[kM - 1] ^ twist(p[kN - 1], p[0]);
}

/// What the engine's operator() would return `count` times.
void draw(at::mt19937_data_pod& engine, uint32_t* output, int count) {
  while (count > 0) {
    if (engine.left_ == 1) {
      next_state(engine.state_);
      engine.left_ = kN + 1;
      engine.next_ = 0;
    }
    const int some = std::min(count, engine.left_ - 1);
    const uint32_t* const words = engine.state_.data() + engine.next_;
    for (int i = 0; i < some; ++i) {
      uint32_t y = words[i];
      y ^= y >> 11;
      y ^= (y << 7) & 0x9d2c5680U;
      y ^= (y << 15) & 0xefc60000U;
      output[i] = y ^ (y >> 18);
    }
    engine.left_ -= some;
    engine.next_ += static_cast<uint32_t>(some);
    output += some;
    count -= some;
  }
}

}  // namespace

void random_mask(const at::Generator& generator, double p, uint8_t* mask, int64_t count) {
  constexpr int kBlock = 512;
  // 53 bits of two outputs, as a number of [0, 1), are below p.
  const auto below = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
  auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  at::mt19937 engine = impl->engine();
  at::mt19937_data_pod data = engine.data();
  std::array<uint32_t, 2 * kBlock> words{};
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int some = static_cast<int>(std::min<int64_t>(kBlock, count - begin));
    draw(data, words.data(), 2 * some);
    for (int i = 0; i < some; ++i) {
      uint64_t pair = 0;
      std::memcpy(&pair, &words[2 * static_cast<size_t>(i)],
                  sizeof pair);  // the first output is the upper half
      mask[begin + i] = (((pair & 0x1FFFFFU) << 32) | (pair >> 32)) < below ? 1 : 0;
    }
  }
  engine.set_data(data);
  impl->set_engine(engine);
}

bool draws_as_random_mask() {
  static const bool known = [] {
    const at::NoGradGuard no_grad;
    constexpr int64_t kCount = 1500;  // the state is renewed several times
    at::Generator torchs = at::detail::createCPUGenerator(7), ours = at::detail::createCPUGenerator(7);
    const at::Tensor drawn = at::empty({kCount}, at::kFloat).bernoulli_(0.7, torchs);
    std::vector<uint8_t> mask(kCount);
    random_mask(ours, 0.7, mask.data(), kCount);
    const auto* const values = drawn.const_data_ptr<float>();
    return std::equal(mask.begin(), mask.end(), values,
                      [](uint8_t m, float v) { return static_cast<float>(m) == v; }) &&
           at::check_generator<at::CPUGeneratorImpl>(torchs)->random64() ==
               at::check_generator<at::CPUGeneratorImpl>(ours)->random64();
  }();
  return known;
}

}  // namespace lockstep::ops
