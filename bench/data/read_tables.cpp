// Reads a table each time that a line comes in, and answers with processor seconds, rows and the sum of labels: bench/data/run.
#include <fmt/format.h>

#include <array>
#include <ctime>
#include <iostream>

#include "bench/places.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/zoo/tables/table_reader.h"

namespace {

// Counts all threads of this process: other work on the machine changes the result little.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Settings {
  std::string table{};
};

constexpr auto kFlags = std::to_array<lockstep::Flag<Settings>>({
    lockstep::benchmarks::place<Settings>("TABLE", &Settings::table, "File with the columns text and label"),
});

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("read_tables", [&] {
    const auto settings = lockstep::parse_table<Settings>(
        "read_tables",
        "Reads a table for each line that comes in, and prints processor seconds, rows and the sum of labels",
        kFlags, argc, argv);
    if (!settings) return 0;
    for (std::string line; std::getline(std::cin, line);) {
      const auto begin = processor_seconds();
      lockstep::tables::TableReader reader(
          settings->table, {.columns = {{"text"}, {"label", lockstep::tables::ColumnType::INT64}}});
      int64_t rows = 0, sum = 0;
      while (const auto block = reader.next()) {
        rows += static_cast<int64_t>(block->size());
        for (const auto label : block->int64s("label")) sum += label;
      }
      std::cout << fmt::format("{} {} {}", processor_seconds() - begin, rows, sum) << std::endl;
    }
    return 0;
  });
}
