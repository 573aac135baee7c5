#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {

struct DataLoader::State {
  struct Result {
    Batch batch{};
    std::exception_ptr error{};
  };

  std::vector<int64_t> indices;
  std::function<Batch(const std::vector<int64_t>&)> collate;
  int64_t batch_size = 1;
  int64_t num_batches = 0;
  bool drop_last = false;
  int64_t ahead = 0;                           // batches beyond the one that next() waits for
  std::function<std::vector<int64_t>()> draw;  // the sampler; none: `indices` for good
  bool is_iterated = false;                    // begin() was called in this pass
  bool is_loaded = false;                      // its place is that of a checkpoint

  std::mutex mutex;
  std::condition_variable ready;  // next() waits for its batch
  std::condition_variable room;   // workers wait for next() to take one
  int64_t next_to_make = 0;
  int64_t next_to_give = 0;
  std::map<int64_t, Result> made;
  int64_t being_made = 0;
  bool stopping = false;
  std::vector<std::thread> workers;

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (auto& worker : workers) worker.join();
  }

  std::vector<int64_t> samples_of(int64_t number) const {
    const auto begin = indices.begin() + number * batch_size;
    const auto left = static_cast<int64_t>(indices.end() - begin);
    return {begin, begin + std::min(batch_size, left)};
  }

  Result make_batch(int64_t number) const noexcept {
    try {
      return {.batch = collate(samples_of(number))};
    } catch (...) {
      return {.error = std::current_exception()};
    }
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock, [&] { return stopping || next_to_make < std::min(num_batches, next_to_give + ahead); });
      if (stopping) return;
      const int64_t number = next_to_make++;
      ++being_made;
      lock.unlock();
      auto result = make_batch(number);
      lock.lock();
      --being_made;
      made.emplace(number, std::move(result));
      if (number == next_to_give || being_made == 0) ready.notify_one();
    }
  }

  Result take() {
    if (workers.empty()) return make_batch(next_to_give++);
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return made.contains(next_to_give); });
    auto result = std::move(made.extract(next_to_give).mapped());
    ++next_to_give;
    lock.unlock();
    room.notify_one();
    return result;
  }

  int64_t batches_in(const std::vector<int64_t>& order) const {
    const auto size = static_cast<int64_t>(order.size());
    return size / batch_size + (!drop_last && size % batch_size != 0 ? 1 : 0);
  }

  /// Batches that were made ahead are dropped. `order`: of the samples.
  void go_to(int64_t batch, std::vector<int64_t> order) {
    {
      std::unique_lock lock(mutex);
      next_to_make = num_batches;  // no new ones
      ready.wait(lock, [&] { return being_made == 0; });
      made.clear();
      indices = std::move(order);
      num_batches = batches_in(indices);
      next_to_make = next_to_give = batch;
    }
    room.notify_all();
  }

  void begin() {
    const bool has_ended = next_to_give == num_batches && !is_loaded;
    const bool is_new = is_iterated || next_to_give == 0 || has_ended;
    is_iterated = true;
    is_loaded = false;
    if (!is_new) return;
    auto order = draw ? draw() : indices;
    if (next_to_give > 0 || order != indices) go_to(0, std::move(order));
  }
};

DataLoader::DataLoader(const Dataset& dataset, std::vector<int64_t> indices, const DataLoaderOptions& options)
    : state_(std::make_unique<State>()) {
  if (!dataset.collate) throw ValueError("a DataLoader needs a dataset with a collate function");
  if (options.batch_size < 1) {
    throw ValueError(fmt::format("batch_size is {}; expected at least 1", options.batch_size));
  }
  if (options.num_workers < 0) {
    throw ValueError(fmt::format("num_workers is {}; expected 0 or more", options.num_workers));
  }
  if (options.prefetch_factor < 1) {
    throw ValueError(fmt::format("prefetch_factor is {}; expected at least 1", options.prefetch_factor));
  }
  state_->indices = std::move(indices);
  state_->collate = dataset.collate;
  state_->batch_size = options.batch_size;
  state_->drop_last = options.drop_last;
  state_->num_batches = state_->batches_in(state_->indices);
  state_->ahead = int64_t{options.num_workers} * options.prefetch_factor;
  for (int i = 0; i < options.num_workers; ++i)
    state_->workers.emplace_back([state = state_.get()] { state->work(); });
}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

void DataLoader::draw_from(std::function<std::vector<int64_t>()> sampler) {
  state_->draw = std::move(sampler);
}

DataLoader::Iterator DataLoader::begin() {
  state_->begin();
  return Iterator(*this);
}

std::optional<Batch> DataLoader::next() {
  if (state_->next_to_give == state_->num_batches) return std::nullopt;
  auto result = state_->take();
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.batch);
}

std::vector<int64_t> DataLoader::samples() const {
  if (state_->next_to_give == 0) return {};
  return state_->samples_of(state_->next_to_give - 1);
}

int64_t DataLoader::num_batches() const { return state_->num_batches; }

StateDict DataLoader::state_dict() const {
  return {{}, {{"samples", state_->next_to_give * state_->batch_size}}};
}

void DataLoader::load_state_dict(const StateDict& state) {
  const auto samples = state.get<int64_t>("DataLoader::load_state_dict", "samples");
  const int64_t batch_size = state_->batch_size;
  auto order = state_->draw ? state_->draw() : state_->indices;  // the sampler's epoch of now
  const int64_t num_batches = state_->batches_in(order);
  if (samples % batch_size != 0 || samples < 0 || samples / batch_size > num_batches) {
    throw ValueError(
        fmt::format("DataLoader::load_state_dict: the state is {} samples into its pass; this loader "
                    "has {} batches of {}",
                    samples, num_batches, batch_size));
  }
  state_->is_iterated = false;
  state_->is_loaded = true;
  state_->go_to(samples / batch_size, std::move(order));
}

}  // namespace lockstep
