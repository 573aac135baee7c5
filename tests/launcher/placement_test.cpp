#include "launcher/process/placement.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "launcher/process/gpus.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

const std::vector<CoreGroup> kTwoNodes = {{{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}};

std::vector<CpuSet> dealt(int ranks, bool divide) { return deal_cores(kTwoNodes, spread(2, ranks), divide); }

TEST(PlacementTest, DealsGroupsInBlocks) {
  EXPECT_EQ(dealt(2, false), (std::vector<CpuSet>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  const auto four = dealt(4, false);
  EXPECT_EQ(four[0], four[1]);
  EXPECT_EQ(four[2], (CpuSet{4, 5, 6, 7}));
  EXPECT_EQ(dealt(1, false)[0], (CpuSet{0, 1, 2, 3}));
}

TEST(PlacementTest, ExclusiveCoresAreDisjoint) {
  EXPECT_EQ(dealt(4, true), (std::vector<CpuSet>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(dealt(3, true), (std::vector<CpuSet>{{0, 1}, {2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(dealt(5, true), (std::vector<CpuSet>{{0, 1}, {2}, {3}, {4, 5}, {6, 7}}));
  EXPECT_THROW(dealt(9, true), ValueError);
}

TEST(PlacementTest, NoTwoRanksShareAPhysicalCore) {
  // As the kernel numbers them: n and n + 4 are threads of one core.
  const std::vector<CoreGroup> threads = {{{{0, 4}, {1, 5}, {2, 6}, {3, 7}}}};
  EXPECT_EQ(deal_cores(threads, {0, 0}, true), (std::vector<CpuSet>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(PlacementTest, RanksAreNearTheirGpus) {
  const CpuSet first = {0, 1, 2, 3}, second = {4, 5, 6, 7};
  EXPECT_EQ(nearest(kTwoNodes, {second, first, second}), (std::vector<size_t>{1, 0, 1}));
  // Cores behind one cache: the ranks of a node take turns.
  const std::vector<CoreGroup> caches = {{{{0}, {1}}}, {{{2}, {3}}}, {{{4}, {5}}}, {{{6}, {7}}}};
  EXPECT_EQ(nearest(caches, {second, second, second, first}), (std::vector<size_t>{2, 3, 2, 0}));
  EXPECT_THROW(nearest(kTwoNodes, {{8, 9}}), ValueError);
}

TEST(PlacementTest, GpusTellTheirNode) {
  namespace fs = std::filesystem;
  char name[] = "/tmp/lockstep_gpus_XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const fs::path root = name;
  EXPECT_TRUE(gpu_numa_nodes(root, std::nullopt).empty());
  const char* addresses[] = {"0000:81:00.0", "0000:17:00.0", "0000:ca:00.0"};
  const char* nodes[] = {"1", "0", "-1"};
  for (int i = 0; i < 3; ++i) {
    const fs::path driver = root / "proc/driver/nvidia/gpus" / addresses[i],
                   pci = root / "sys/bus/pci/devices" / addresses[i];
    fs::create_directories(driver);
    fs::create_directories(pci);
    std::ofstream(driver / "information") << "Model: \t\t Tesla\nGPU UUID: \t GPU-" << i << "abc\n";
    std::ofstream(pci / "numa_node") << nodes[i] << "\n";
  }
  EXPECT_EQ(gpu_numa_nodes(root, std::nullopt), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(gpu_numa_nodes(root, "1,0"), (std::vector<int>{1, 0}));
  EXPECT_EQ(gpu_numa_nodes(root, "GPU-0abc"), (std::vector<int>{1}));
  EXPECT_TRUE(gpu_numa_nodes(root, "0,MIG-5").empty());
  EXPECT_TRUE(gpu_numa_nodes(root, "-1").empty());
  fs::remove_all(root);
}

TEST(PlacementTest, ThisMachineCanBeRead) {
  for (const Binding binding : {Binding::node, Binding::socket, Binding::core_complex}) {
    for (const CpuSet& cores : place_ranks(binding, 2)) EXPECT_FALSE(cores.empty());
  }
  EXPECT_TRUE(place_ranks(Binding::none, 2).empty());
}

TEST(PlacementTest, ListsAreShort) { EXPECT_EQ(core_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11"); }

}  // namespace
}  // namespace lockstep::launcher
