#include <gtest/gtest.h>

#include <sstream>

#include "tools/topo/render.h"

namespace lockstep::topo {
namespace {

/// `ranks` on cores of their own, and two GPUs.
Report report_of(size_t ranks) {
  Report report;
  report.topology.host = "host";
  report.topology.cpu_model =
      "A Processor With a Long Name and a Clock of 2.00 GHz by Somebody or Other, Inc.";
  for (size_t i = 0; i < ranks; ++i) {
    const int number = static_cast<int>(i);
    report.topology.cpus.push_back({number, number, 0, 0, {number, number, 0}});
    report.ranks.push_back(i);
  }
  report.topology.gpus = {{"H100", "0000:01:00.0", 0, {5, 2, 1}}, {"H100", "0000:02:00.0", 0, {6, 2, 1}}};
  report.speeds.assign(ranks, std::vector<Speed>(ranks));
  return report;
}

TEST(TopoTest, GpusAreConnectedByTheNearestBridgeTheyShare) {
  const auto gpu = [](const char* address, int node, std::vector<uint64_t> bridges) {
    return Gpu{"", address, node, std::move(bridges)};
  };
  const Gpu first = gpu("a", 0, {5, 2, 1});
  EXPECT_EQ(link_between(first, first), "X");
  EXPECT_EQ(link_between(first, gpu("b", 0, {5, 2, 1})), "PIX");
  EXPECT_EQ(link_between(first, gpu("b", 0, {6, 2, 1})), "PXB");
  EXPECT_EQ(link_between(first, gpu("b", 0, {7, 1})), "PHB");
  EXPECT_EQ(link_between(first, gpu("b", 0, {8, 9})), "NODE");
  EXPECT_EQ(link_between(first, gpu("b", 1, {8, 9})), "SYS");
  EXPECT_EQ(link_between(first, gpu("b", -1, {8, 9})), "?");
  EXPECT_EQ(link_between(Cpu{0, 0, 0, 1, {}}, first), "SYS");
}

TEST(TopoTest, TextKeepsWithinTheTerminal) {
  for (const int columns : {80, 40}) {
    std::istringstream text(as_text(report_of(16), columns));
    size_t rows = 0;
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
      rows += line.starts_with("  rank 15 ") ? 1 : 0;
    }
    EXPECT_GE(rows, 6u);
  }
}

TEST(TopoTest, ThePictureHasUnits) {
  Report report = report_of(2);
  report.speeds[0][1] = report.speeds[1][0] = {.latency_us = 0.26, .gigabytes_per_s = 8.14};
  const std::string picture = as_svg(report);
  EXPECT_NE(picture.find(">8.1 GB/s<"), std::string::npos) << picture;
  EXPECT_NE(picture.find(">0.26 us<"), std::string::npos) << picture;
}

TEST(TopoTest, TextShowsEveryPair) {
  const std::string text = as_text(report_of(3), 80);
  EXPECT_NE(text.find("            rank 0  rank 1  rank 2   GPU 0   GPU 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  rank 2        L3      L3       X    NODE    NODE\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  GPU 1       NODE    NODE    NODE     PXB       X\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::topo
