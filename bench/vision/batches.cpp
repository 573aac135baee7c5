// vision_batches DIRECTORY BATCH: for each line on standard input makes an epoch of training batches (random crop, flip,
// normalize) on this thread, and prints the images a second. bench/vision/run compares that with torch's DataLoader.
#include <array>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <string>

#include "bench/places.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/zoo/vision/picture_dataset.h"

namespace {

using namespace lockstep;

struct Settings {
  std::filesystem::path folder{};
  int batch = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("DIRECTORY", &Settings::folder, "Folder of the pictures"),
    benchmarks::count<Settings>("BATCH", &Settings::batch, "Pictures of a batch"),
});

}  // namespace

int main(int argc, char** argv) {
  return run_main("vision_batches", [&] {
    const auto settings = parse_table<Settings>(
        "vision_batches",
        "Makes an epoch of training batches for each line that comes in, and prints the images a second",
        kFlags, argc, argv);
    if (!settings) return 0;
    const auto epoch = std::make_shared<std::atomic<int64_t>>(0);
    const auto dataset =
        vision::picture_dataset(vision::open_pictures(settings->folder, vision::PictureSplit::train),
                                {.transforms = {.crop_padding = 4, .flip_probability = .5}, .epoch = epoch});
    std::vector<int64_t> order(static_cast<size_t>(dataset.size));
    std::iota(order.begin(), order.end(), 0);
    for (std::string line; std::getline(std::cin, line);) {
      const auto start = std::chrono::steady_clock::now();
      DataLoader loader(dataset, order, {.batch_size = settings->batch});
      int64_t images = 0;
      for (const Batch& batch : loader) images += batch.size();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      ++*epoch;
      std::cout << static_cast<double>(images) / seconds.count() << std::endl;
    }
    return 0;
  });
}
