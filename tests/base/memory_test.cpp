#include "lockstep/base/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <memory>

namespace lockstep {
namespace {

long minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Taking, touching and freeing 48 MiB again and again costs page faults only the first time.
TEST(Memory, FreedMemoryIsUsedAgainWithoutPageFaults) {
  keep_freed_memory();
  constexpr size_t bytes = size_t{48} << 20;
  const auto use = [&] {
    const std::unique_ptr<char[]> memory(new char[bytes]);
    std::memset(memory.get(), 1, bytes);
    asm volatile("" : : "r"(memory.get()) : "memory");  // the writes are wanted
  };
  use();
  const long before = minor_faults();
  for (int i = 0; i < 4; ++i) use();
  EXPECT_LT(minor_faults() - before, 1000);  // 12288 pages of 4 KiB each time otherwise
}

}  // namespace
}  // namespace lockstep
