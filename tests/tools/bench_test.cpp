// The figures that `lockstep bench` prints follow from times by these rules.
#include <gtest/gtest.h>

#include "bench/collectives/busy.h"
#include "bench/collectives/collective.h"
#include "bench/collectives/in_turn.h"
#include "bench/collectives/report.h"
#include "bench/collectives/spread.h"
#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

TEST(BenchSizes, AreReadAsPowersOf1024) {
  EXPECT_EQ(parse_size("64"), 64U);
  EXPECT_EQ(parse_size("4K"), 4096U);
  EXPECT_EQ(parse_size("25M"), 26214400U);
  EXPECT_EQ(parse_size("1GiB"), size_t{1} << 30);
  for (const char* wrong : {"", "K", "4 K", "-1", "1T", "3KB", "99999999999999999G"}) {
    EXPECT_THROW(parse_size(wrong), ValueError) << wrong;
  }
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{4096}, size_t{25} << 20, size_t{1000}}) {
    std::string text = size_text(bytes);
    text.erase(text.find(' '), 1);
    EXPECT_EQ(parse_size(text), bytes);
  }
}

TEST(BenchFigures, QuantileIsTheNearestRank) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 0), 1);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 1), 4);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
}

TEST(BenchFigures, BusBandwidthIsThatOfNcclTests) {
  // 1 GB in 1 s among 4 ranks.
  const auto of = [](Collective collective) { return bus_bandwidth(collective, 1000000000, 4, 1); };
  EXPECT_DOUBLE_EQ(of(Collective::all_reduce), 1.5);
  EXPECT_DOUBLE_EQ(of(Collective::reduce_scatter), 0.75);
  EXPECT_DOUBLE_EQ(of(Collective::all_gather), 0.75);
  EXPECT_DOUBLE_EQ(of(Collective::broadcast), 1);
  EXPECT_DOUBLE_EQ(of(Collective::barrier), 0);
}

TEST(BenchFigures, BuffersAreWhatARankSendsAndGets) {
  const auto buffers = buffers_of(Collective::all_gather, 4096, 4, 1);
  EXPECT_EQ(buffers.input, 1024U);
  EXPECT_EQ(buffers.output, 4096U);
  EXPECT_EQ(buffers_of(Collective::scatter, 4096, 4, 0).input, 4096U);
  EXPECT_EQ(buffers_of(Collective::scatter, 4096, 4, 1).input, 0U);
}

TEST(StepsInTurn, ComparesNeighboringStepsWhateverDrifts) {
  // Blocks of two steps; a step costs 1 more with it, and each unit of eight steps 100 more than the
  // last.
  std::vector<double> steps;
  for (size_t step = 0; step < 43; ++step) {
    const size_t unit = step / 8;
    steps.push_back(100.0 * static_cast<double>(unit) + (is_with(step, 2) ? 11 : 10));
  }
  const Added cost = added_in_turn({steps, steps}, 2);
  EXPECT_EQ(cost.units, 10U);
  EXPECT_DOUBLE_EQ(cost.seconds, 1);
  EXPECT_DOUBLE_EQ(cost.least, 1);
  EXPECT_DOUBLE_EQ(cost.most, 1);
  EXPECT_DOUBLE_EQ(cost.without, 210);
  EXPECT_EQ(added_in_turn({{1, 2, 3}}, 1).units, 0U);
}

TEST(BenchReport, GivesOneObjectPerLineAndAPicture) {
  Result result;
  result.ranks = 2;
  result.cores = 2;
  result.dtype = "float32";
  result.limit[4096] = 0.5e-6;
  Row row;
  row.bytes = 4096;
  row.backend = "lockstep";
  row.algorithm = "direct";
  row.p50 = 1e-6;
  row.p99 = 2e-6;
  row.faster_than["gloo"] = {100, 90, 110};
  result.rows.push_back(row);
  EXPECT_EQ(json_lines(result),
            "{\"collective\":\"all_reduce\",\"backend\":\"lockstep\",\"algorithm\":\"direct\",\"ranks\":2,"
            "\"dtype\":\"float32\",\"bytes\":4096,\"p50_us\":1.0,\"p99_us\":2.0,\"busbw_gb_s\":4.096,"
            "\"limit_us\":0.5,\"registered\":true,"
            "\"faster_than\":{\"gloo\":{\"median\":100.0,\"min\":90.0,\"max\":110.0}}}\n");
  EXPECT_NE(table(result).find("50 %"), std::string::npos) << table(result);
  const std::string picture = svg(result);
  EXPECT_NE(picture.find("lockstep direct"), std::string::npos);
  EXPECT_NE(picture.find("limit of the machine"), std::string::npos);
  EXPECT_NE(picture.find("<text class=\"a\""), std::string::npos) << picture;  // Lockstep's color
  EXPECT_NE(picture.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(BenchReport, TheTableHasAColumnForEachPeer) {
  Result result;
  result.dtype = "float32";
  Row own;
  own.bytes = 64;
  own.backend = "lockstep";
  own.p50 = own.p99 = 1e-6;
  own.faster_than["gloo"] = {4096.39, 1822.2, 12718};
  Row peer = own;
  peer.backend = "gloo";
  peer.faster_than.clear();
  result.rows = {own, peer};
  EXPECT_NE(table(result).find("of limit  speedup over Gloo: median (min to max)\n"), std::string::npos)
      << table(result);
  EXPECT_NE(table(result).find("  4100 (1820 to 12700)\n"), std::string::npos) << table(result);

  // A peer that could be measured at one size only: its times stay in its column.
  own.bytes = 1 << 20;
  own.faster_than = {{"mpi", {7.344, 5.834, 8.63}}};
  result.rows.push_back(own);
  const std::string text = table(result);
  const size_t head = text.find("speedup over Open MPI: median (min to max)");
  ASSERT_NE(head, std::string::npos) << text;
  const size_t cell = text.find("7.34 (5.83 to 8.63)");
  ASSERT_NE(cell, std::string::npos) << text;
  EXPECT_EQ(head - text.rfind('\n', head), cell - text.rfind('\n', cell)) << text;
  EXPECT_EQ(text.find(" \n"), std::string::npos) << text;
}

TEST(BenchReport, SaysHowSureTheLimitIs) {
  Result result;
  result.dtype = "float32";
  constexpr size_t kSmall = 4096, kLarge = 25 << 20, kHuge = 100 << 20;
  result.limit = {{kSmall, 1e-6}, {kLarge, 3286e-6}, {kHuge, 10000e-6}};
  result.update = {{kSmall, 2e-6}, {kLarge, 4921e-6}, {kHuge, 10100e-6}};
  const std::string text = table(result);
  EXPECT_NE(
      text.find(
          "the limit is uncertain at 25 MiB: two ways to measure it differ by 33 %: 3286 us and 4921 us\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("limit at 100 MiB: 10000 us; a second way to measure it gives 10100 us\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("4 KiB"), std::string::npos) << text;  // the caches decide there
}

TEST(BenchFigures, AreShownWithThreeDigits) {
  for (const auto& [value, text] : std::vector<std::pair<double, const char*>>{{0, "0"},
                                                                               {0.01234, "0.0123"},
                                                                               {0.9996, "1.00"},
                                                                               {1.5, "1.50"},
                                                                               {9.996, "10.0"},
                                                                               {15.04, "15.0"},
                                                                               {99.96, "100"},
                                                                               {154.4, "154"},
                                                                               {999.6, "1000"},
                                                                               {4096.39, "4100"},
                                                                               {12718, "12700"}}) {
    EXPECT_EQ(three_digits(value), text) << value;
  }
}

TEST(BenchReport, ThePicturesAxesHaveUnits) {
  Result result;
  result.dtype = "float32";
  for (const size_t bytes : {size_t{64}, size_t{1} << 20, size_t{25} << 20}) {
    Row row;
    row.bytes = bytes;
    row.backend = "lockstep";
    row.p50 = static_cast<double>(bytes) * 1e-9;
    result.rows.push_back(row);
  }
  const std::string picture = svg(result);
  for (const char* mark : {">32 B<", ">1 KiB<", ">1 MiB<", ">10 ns<", ">100 us<", ">1 ms<", ">size<"}) {
    EXPECT_NE(picture.find(mark), std::string::npos) << mark << "\n" << picture;
  }
  EXPECT_EQ(picture.find("e+0"), std::string::npos);
}

TEST(BusyMachine, CoresInUseBetweenTwoReadings) {
  // user nice system idle iowait irq softirq steal guest guest_nice
  const char* const before = "cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 50 0 50 500\ncpu1 50 0 50 500\nintr 1\n";
  const char* const after = "cpu  120 0 110 1010 0 0 0 0 0 0\ncpu0 60 0 55 505\ncpu1 60 0 55 505\nintr 2\n";
  EXPECT_DOUBLE_EQ(busy_cores(before, after), 1.5);
  EXPECT_DOUBLE_EQ(busy_cores("", ""), 0);
}

TEST(BusyMachine, IsSaidOnlyWhenItMatters) {
  EXPECT_EQ(busy_warning(0.2, 2), "");
  EXPECT_EQ(busy_warning(3, 96), "");
  EXPECT_TRUE(busy_warning(1.3, 2).starts_with("warning: this machine is busy: 1.3 of its 2 cores"))
      << busy_warning(1.3, 2);
}

}  // namespace
}  // namespace lockstep::bench
