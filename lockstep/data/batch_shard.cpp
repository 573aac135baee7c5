#include "lockstep/data/batch_shard.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<int64_t> batch_shard(const std::vector<int64_t>& indices, int64_t batch_size, int num_replicas,
                                 int rank, bool drop_last) {
  if (batch_size < 1) throw ValueError(fmt::format("batch_size is {}; expected at least 1", batch_size));
  if (num_replicas < 1)
    throw ValueError(fmt::format("num_replicas is {}; expected at least 1", num_replicas));
  if (rank < 0 || rank >= num_replicas) {
    throw ValueError(
        fmt::format("Invalid rank {}, rank should be in the interval [0, {}]", rank, num_replicas - 1));
  }
  const auto size = static_cast<int64_t>(indices.size());
  const int64_t round = num_replicas * batch_size;  // samples of one batch on every rank
  int64_t total = (size + round - 1) / round * round;
  if (drop_last) {
    total = size / round * round;
  } else if (num_replicas == 1) {
    total = size;
  }
  // What fills up the end is drawn from the first round only, repeated when the dataset is smaller than a
  // round.
  const int64_t beginning = std::min(size, round);
  std::vector<int64_t> mine;
  for (int64_t first = rank * batch_size; first < total; first += round) {
    for (int64_t i = first; i < std::min(first + batch_size, total); ++i) {
      mine.push_back(indices[static_cast<size_t>(i < size ? i : (i - size) % beginning)]);
    }
  }
  return mine;
}

}  // namespace lockstep
