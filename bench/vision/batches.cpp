// vision_batches DIRECTORY BATCH: for each line on standard input makes an epoch of training batches (random crop, flip,
// normalize) on this thread, and prints the images a second. bench/vision/run compares that with torch's DataLoader.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>

#include "lockstep/base/main.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/zoo/vision/picture_dataset.h"

int main(int, char** argv) {
  using namespace lockstep;
  return run_main("vision_batches", [&] {
    const auto epoch = std::make_shared<std::atomic<int64_t>>(0);
    const auto dataset =
        vision::picture_dataset(vision::open_pictures(argv[1], vision::PictureSplit::train),
                                {.transforms = {.crop_padding = 4, .flip_probability = .5}, .epoch = epoch});
    std::vector<int64_t> order(static_cast<size_t>(dataset.size));
    std::iota(order.begin(), order.end(), 0);
    for (std::string line; std::getline(std::cin, line);) {
      const auto start = std::chrono::steady_clock::now();
      DataLoader loader(dataset, order, {.batch_size = std::atoi(argv[2])});
      int64_t images = 0;
      for (const Batch& batch : loader) images += batch.size();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      ++*epoch;
      std::cout << static_cast<double>(images) / seconds.count() << std::endl;
    }
    return 0;
  });
}
