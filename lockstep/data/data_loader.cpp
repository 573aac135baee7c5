#include "lockstep/data/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/batch_source.h"

namespace lockstep {
namespace {

void check(const DataLoaderOptions& options) {
  if (options.batch_size < 1) {
    throw ValueError(fmt::format("batch_size is {}; expected at least 1", options.batch_size));
  }
  if (options.num_workers < 0) {
    throw ValueError(fmt::format("num_workers is {}; expected 0 or more", options.num_workers));
  }
  if (options.prefetch_factor < 1) {
    throw ValueError(fmt::format("prefetch_factor is {}; expected at least 1", options.prefetch_factor));
  }
}

}  // namespace

struct DataLoader::State {
  struct Result {
    Batch batch{};
    std::exception_ptr error{};
  };

  std::unique_ptr<detail::BatchSource> source;
  int64_t ahead = 0;         // batches beyond the one that next() waits for
  bool is_iterated = false;  // begin() was called in this pass
  bool is_loaded = false;    // its place is that of a checkpoint

  base::Mutex mutex;
  base::ConditionVariable ready;                       // next() waits for its batch
  base::ConditionVariable room;                        // workers wait for next() to take one
  int64_t num_batches LOCKSTEP_GUARDED_BY(mutex) = 0;  // of this pass; kUnknown until the source has ended
  int64_t last_num_batches LOCKSTEP_GUARDED_BY(mutex) =
      detail::BatchSource::kUnknown;  // of the last pass that was at its end
  int64_t next_to_make = 0;
  int64_t next_to_give = 0;
  std::map<int64_t, Result> made LOCKSTEP_GUARDED_BY(mutex);
  int64_t being_made LOCKSTEP_GUARDED_BY(mutex) = 0;
  // The source is at next_to_make. Nothing is made before a batch is wanted: what collate and the sampler read, such as the
  // epoch, is set by then.
  bool has_begun = false;
  bool is_reading LOCKSTEP_GUARDED_BY(mutex) = false;  // a worker asks the source
  bool stopping LOCKSTEP_GUARDED_BY(mutex) = false;
  std::vector<std::thread> workers;

  State(std::unique_ptr<detail::BatchSource> from, const DataLoaderOptions& options)
      : source(std::move(from)), ahead(int64_t{options.num_workers} * options.prefetch_factor) {
    know_batches();
  }

  void start(int num_workers) {
    for (int i = 0; i < num_workers; ++i) workers.emplace_back([this] { work(); });
  }

  ~State() {
    {
      const base::LockGuard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (auto& worker : workers) worker.join();
  }

  bool may_read() const LOCKSTEP_REQUIRES(mutex) {
    return has_begun && !is_reading && next_to_make < std::min(num_batches, next_to_give + ahead);
  }

  /// nullopt at the end.
  std::optional<std::function<Result()>> read() const noexcept {
    try {
      auto make = source->next();
      if (!make) return std::nullopt;
      return [make = std::move(make)]() -> Result {
        try {
          return {.batch = make()};
        } catch (...) {
          return {.error = std::current_exception()};
        }
      };
    } catch (...) {
      return [error = std::current_exception()]() -> Result { return {.error = error}; };
    }
  }

  void ended_after(int64_t batches) LOCKSTEP_REQUIRES(mutex) { num_batches = last_num_batches = batches; }

  void work() {
    base::UniqueLock lock(mutex);
    while (true) {
      room.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex) { return stopping || may_read(); });
      if (stopping) return;
      const int64_t number = next_to_make++;
      ++being_made;
      is_reading = true;
      lock.unlock();
      auto make = read();
      lock.lock();
      is_reading = false;
      if (make) {
        lock.unlock();
        room.notify_one();  // another worker may read
        auto result = (*make)();
        make.reset();  // what it holds is let go here, beside the others
        lock.lock();
        made.emplace(number, std::move(result));
      } else {
        ended_after(number);
      }
      --being_made;
      if (!make || number == next_to_give || being_made == 0) ready.notify_one();
    }
  }

  /// nullopt at the end.
  std::optional<Result> take() {
    if (!has_begun) {
      go_to(source->follow(next_to_give));
    } else if (source->is_renewed()) {
      is_iterated = false;
      source->draw();
      go_to(0);
    }
    base::UniqueLock lock(mutex);
    if (next_to_give == num_batches) return std::nullopt;
    if (workers.empty()) {
      auto make = read();
      if (make) return ++next_to_give, (*make)();
      ended_after(next_to_give);
      return std::nullopt;
    }
    ready.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex) {
      return made.contains(next_to_give) || next_to_give == num_batches;
    });
    if (next_to_give == num_batches) return std::nullopt;
    auto result = std::move(made.extract(next_to_give).mapped());
    ++next_to_give;
    lock.unlock();
    room.notify_one();
    return result;
  }

  /// Batches that were made ahead are dropped.
  void stop_reading(base::UniqueLock& lock) LOCKSTEP_REQUIRES(mutex) {
    has_begun = false;  // no new ones
    ready.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex) { return being_made == 0; });
    made.clear();
    next_to_make = next_to_give = 0;
    num_batches = detail::BatchSource::kUnknown;
  }

  void know_batches() LOCKSTEP_REQUIRES(mutex) {
    num_batches = source->num_batches();
    if (num_batches != detail::BatchSource::kUnknown) last_num_batches = num_batches;
  }

  void go_to(int64_t batch) {
    {
      base::UniqueLock lock(mutex);
      stop_reading(lock);
      source->go_to(batch);
      know_batches();
      next_to_make = next_to_give = batch;
      has_begun = true;
    }
    room.notify_all();
  }

  /// `batch` of a pass that was saved. The source begins there when its first batch is wanted.
  void resume_at(int64_t batch) {
    base::UniqueLock lock(mutex);
    stop_reading(lock);
    if (source->has_numbers()) {
      source->go_to(batch);
      know_batches();
    }
    next_to_make = next_to_give = batch;
    is_iterated = false;
    is_loaded = true;
  }

  void begin() {
    const bool goes_on = std::exchange(is_loaded, false) ||
                         (!is_iterated && next_to_give > 0 && next_to_give != known_batches());
    is_iterated = true;
    if (goes_on) return;
    source->draw();
    go_to(0);
  }

  int64_t known_batches() {
    const base::LockGuard lock(mutex);
    return num_batches;
  }
};

DataLoader::DataLoader(const Dataset& dataset, std::vector<int64_t> indices,
                       const DataLoaderOptions& options) {
  if (!dataset.collate) throw ValueError("a DataLoader needs a dataset with a collate function");
  check(options);
  state_ = std::make_unique<State>(
      std::make_unique<detail::NumberedBatches>(dataset.collate, std::move(indices), options), options);
  state_->start(options.num_workers);
}

DataLoader::DataLoader(const IterableDataset& dataset, const BatchSharding& sharding,
                       const DataLoaderOptions& options) {
  if (!dataset.next) throw ValueError("a DataLoader needs an IterableDataset with a function next");
  check(options);
  if (options.drop_last) {
    throw ValueError(
        "drop_last is set for an IterableDataset, which makes its batches itself: let its next() leave out the "
        "short one");
  }
  const int num_replicas = sharding.num_replicas ? *sharding.num_replicas : default_world().size();
  const int rank = sharding.rank ? *sharding.rank : default_world().rank();
  if (num_replicas < 1) {
    throw ValueError(fmt::format("num_replicas is {}; expected at least 1", num_replicas));
  }
  if (rank < 0 || rank >= num_replicas) {
    throw ValueError(
        fmt::format("Invalid rank {}, rank should be in the interval [0, {}]", rank, num_replicas - 1));
  }
  const int ranks_apart = num_replicas == 1 && is_initialized() ? default_world().size() : 0;
  state_ = std::make_unique<State>(
      std::make_unique<detail::ShardedBatches>(dataset, options.batch_size, num_replicas, rank, ranks_apart),
      options);
  state_->start(options.num_workers);
}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

void DataLoader::draw_from(std::function<std::vector<int64_t>()> sampler,
                           const detail::EpochPosition* position) {
  static_cast<detail::NumberedBatches&>(*state_->source).draw_from(std::move(sampler), position);
}

DataLoader::Iterator DataLoader::begin() {
  state_->begin();
  return Iterator(*this);
}

std::optional<Batch> DataLoader::next() {
  auto result = state_->take();
  if (!result) {
    state_->is_loaded = false;  // this pass is over, so that the next begin() is a new one
    state_->source->ended();
    return std::nullopt;
  }
  if (result->error) std::rethrow_exception(result->error);
  return std::move(result->batch);
}

std::vector<int64_t> DataLoader::samples() const {
  if (state_->next_to_give == 0) return {};
  return state_->source->samples_of(state_->next_to_give - 1);
}

int64_t DataLoader::num_batches() const {
  const base::LockGuard lock(state_->mutex);
  if (state_->last_num_batches == detail::BatchSource::kUnknown) {
    throw Error(
        "num_batches: an IterableDataset has not been at its end yet, which tells how many batches it gives");
  }
  return state_->last_num_batches;
}

StateDict DataLoader::state_dict() const { return state_->source->save(state_->next_to_give); }

void DataLoader::load_state_dict(const StateDict& state) {
  state_->resume_at(state_->source->place_of(state));
}

}  // namespace lockstep
