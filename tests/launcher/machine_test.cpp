#include "launcher/machines/machine.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/text/temporary_directory.h"

namespace lockstep::launcher {
namespace {

TEST(CountGpus, ContainersMayHaveThoseOfSomeNumbersOnly) {
  const TemporaryDirectory devices;
  EXPECT_EQ(count_gpus(std::nullopt, devices.path()), 0);
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia", "nvidia-caps", "nvidia3x", "null", "nvidia3"})
    devices.write(name, "");
  EXPECT_EQ(count_gpus(std::nullopt, devices.path()), 1);
  devices.write("nvidia12", "");
  EXPECT_EQ(count_gpus(std::nullopt, devices.path()), 2);
  EXPECT_EQ(count_gpus(std::nullopt, devices.path() / "missing"), 0);
}

TEST(CountGpus, TheVariableDecides) {
  const TemporaryDirectory devices;
  devices.write("nvidia0", "");
  EXPECT_EQ(count_gpus("", devices.path()), 0);
  EXPECT_EQ(count_gpus("-1", devices.path()), 0);
  EXPECT_EQ(count_gpus("NoDevFiles", devices.path()), 0);
  EXPECT_EQ(count_gpus("3", devices.path()), 1);
  EXPECT_EQ(count_gpus("0,2,GPU-1234", devices.path()), 3);
}

}  // namespace
}  // namespace lockstep::launcher
