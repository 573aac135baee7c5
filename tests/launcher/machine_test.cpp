#include "launcher/machines/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

class CountGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "count_gpus_XXXXXX").string();
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    devices_ = path;
  }
  void TearDown() override { fs::remove_all(devices_); }
  fs::path devices_;
};

TEST_F(CountGpus, ContainersMayHaveThoseOfSomeNumbersOnly) {
  EXPECT_EQ(count_gpus(std::nullopt, devices_), 0);
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia", "nvidia-caps", "nvidia3x", "null", "nvidia3"})
    std::ofstream(devices_ / name) << "";
  EXPECT_EQ(count_gpus(std::nullopt, devices_), 1);
  std::ofstream(devices_ / "nvidia12") << "";
  EXPECT_EQ(count_gpus(std::nullopt, devices_), 2);
  EXPECT_EQ(count_gpus(std::nullopt, devices_ / "missing"), 0);
}

TEST_F(CountGpus, TheVariableDecides) {
  std::ofstream(devices_ / "nvidia0") << "";
  EXPECT_EQ(count_gpus("", devices_), 0);
  EXPECT_EQ(count_gpus("-1", devices_), 0);
  EXPECT_EQ(count_gpus("NoDevFiles", devices_), 0);
  EXPECT_EQ(count_gpus("3", devices_), 1);
  EXPECT_EQ(count_gpus("0,2,GPU-1234", devices_), 3);
}

}  // namespace
}  // namespace lockstep::launcher
