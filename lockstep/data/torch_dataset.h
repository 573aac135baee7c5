// LibTorch's own data sets (torch::data::datasets) in our DataLoader. Includes none of LibTorch's headers of data.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/data/dataset.h"

namespace lockstep {
namespace detail {

/// Takes samples by number: MNIST, TensorDataset, a Dataset of one's own, and those with map().
template <class D>
concept takes_numbers = requires(D& dataset, const std::vector<size_t>& numbers) {
  dataset.get_batch(numbers);
};
/// Takes a number of samples: a StatefulDataset such as ChunkDataset, and a StreamDataset.
template <class D>
concept takes_a_count = !takes_numbers<D> && requires(D & dataset, size_t count) {
  dataset.get_batch(count);
};

template <class T>
concept is_list = requires(const T& list) {
  list.begin();
  list.size();
  typename T::value_type;
}
&&!std::same_as<T, at::Tensor>;
template <class E>
concept has_data = requires(const E& example) {
  example.data;
};
template <class E>
concept has_target = has_data<E> && requires(const E& example) {
  example.target;
};
template <class T>
concept is_column = std::same_as<T, at::Tensor> || std::integral<T> || std::floating_point<T>;

/// One tensor of all samples' tensors, or numbers.
at::Tensor stacked(const std::vector<at::Tensor>& samples);
at::Tensor stacked(const std::vector<int64_t>& samples);
at::Tensor stacked(const std::vector<float>& samples);
at::Tensor stacked(const std::vector<double>& samples);

template <class T>
using stored_column = std::conditional_t<std::integral<T>, int64_t, T>;

/// `get(sample)` of all samples.
template <class List, class Get>
at::Tensor column(const List& samples, Get get) {
  using T = std::remove_cvref_t<decltype(get(*samples.begin()))>;
  static_assert(
      is_column<T>,
      "torch_dataset: data and target must be tensors or numbers; pass a function that makes a lockstep::Batch");
  std::vector<stored_column<T>> values;
  values.reserve(samples.size());
  for (const auto& sample : samples) values.push_back(static_cast<stored_column<T>>(get(sample)));
  return stacked(values);
}

/// What is done with a batch of LibTorch's where no function is given.
struct BatchOfExamples {
  template <class B>
  Batch operator()(B batch) const {
    if constexpr (std::same_as<B, Batch>) {
      return batch;
    } else if constexpr (std::same_as<B, at::Tensor>) {
      return {{"data", std::move(batch)}};
    } else if constexpr (is_list<B>) {
      return of_list(batch);
    } else if constexpr (has_target<B>) {
      static_assert(
          std::same_as<decltype(B::data), at::Tensor> && std::same_as<decltype(B::target), at::Tensor>,
          "torch_dataset: data and target of a batch must be tensors; pass a function that makes a "
          "lockstep::Batch");
      return {{"data", std::move(batch.data)}, {"target", std::move(batch.target)}};
    } else if constexpr (has_data<B>) {
      static_assert(
          std::same_as<decltype(B::data), at::Tensor>,
          "torch_dataset: data of a batch must be a tensor; pass a function that makes a lockstep::Batch");
      return {{"data", std::move(batch.data)}};
    } else {
      static_assert(
          has_data<B>,
          "torch_dataset: no torch::data::Example comes from get_batch(); pass a function that makes a "
          "lockstep::Batch of what does");
    }
  }

 private:
  template <class List>
  static Batch of_list(const List& samples) {
    using E = typename List::value_type;
    if constexpr (has_target<E>) {
      return {{"data", column(samples, [](const E& sample) { return sample.data; })},
              {"target", column(samples, [](const E& sample) { return sample.target; })}};
    } else if constexpr (has_data<E>) {
      return {{"data", column(samples, [](const E& sample) { return sample.data; })}};
    } else {
      return {{"data", column(samples, [](const E& sample) { return sample; })}};
    }
  }
};

/// A dataset for the threads of a loader. get_batch() need not be thread-safe: each thread has a copy, as each of
/// LibTorch's workers, made when it is needed. One that cannot be copied is used by one thread at a time.
template <class D>
class DatasetOfThreads {
 public:
  explicit DatasetOfThreads(D dataset) { idle_.push_back(std::make_unique<D>(std::move(dataset))); }

  /// Calls `use` with a dataset that no other thread has.
  template <class Use>
  auto with(Use use) {
    Loan loan{*this, take()};
    return use(*loan.dataset);
  }

 private:
  struct Loan {
    DatasetOfThreads& owner;
    std::unique_ptr<D> dataset;
    ~Loan() {
      {
        const base::LockGuard lock(owner.mutex_);
        owner.idle_.push_back(std::move(dataset));
      }
      owner.is_idle_.notify_one();
    }
  };

  std::unique_ptr<D> take() {
    base::UniqueLock lock(mutex_);
    const bool had_to_wait = idle_.empty();
    is_idle_.wait(lock, [this]() LOCKSTEP_REQUIRES(mutex_) { return !idle_.empty(); });
    if constexpr (std::copy_constructible<D>) {
      if (had_to_wait && idle_.size() == 1) {
        try {
          idle_.push_back(std::make_unique<D>(std::as_const(*idle_.front())));
        } catch (...) {
          is_idle_.notify_one();  // the one that is here is free again
          throw;
        }
        is_idle_.notify_one();
      }
    }
    auto dataset = std::move(idle_.back());
    idle_.pop_back();
    return dataset;
  }

  base::Mutex mutex_{};
  base::ConditionVariable is_idle_{};
  std::vector<std::unique_ptr<D>> idle_ LOCKSTEP_GUARDED_BY(mutex_){};
};

/// Throws ValueError for none.
int64_t known_size(std::optional<size_t> size);
/// Throws ValueError for one above 0 with a dataset that ends itself, and for one that is missing otherwise.
void check_epoch_size(int64_t epoch_size, bool ends_itself);

template <class D>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};

}  // namespace detail

/// A data set of LibTorch's whose samples have numbers, with its transforms and its collation, for a DataLoader and our
/// samplers. A batch has the tensors "data" and "target" of torch::data::Example; samples that no Stack<> has made one
/// are stacked. `to_batch` makes a Batch of anything else that get_batch() returns; it must be thread-safe.
///
///     auto mnist = torch::data::datasets::MNIST("mnist").map(torch::data::transforms::Normalize<>(0.1307, 0.3081));
///     const auto dataset = lockstep::torch_dataset(mnist);
///     lockstep::DistributedSampler sampler(dataset);
///     lockstep::DataLoader loader(dataset, sampler, {.batch_size = 32, .num_workers = 2});
///     for (auto& batch : loader) loss(ddp(batch["data"]), batch["target"]).backward();
///
/// Workers have copies of the data set, one each at most; a SharedBatchDataset is copied as a pointer, so that its
/// get_batch() must be thread-safe. One that cannot be copied serves one worker at a time. Throws ValueError for a data
/// set without a size.
template <class D, class ToBatch = detail::BatchOfExamples>
Dataset torch_dataset(D dataset, ToBatch to_batch = {}) {
  static_assert(
      detail::takes_numbers<D>,
      "torch_dataset: get_batch() of this data set takes no list of numbers; a StatefulDataset, such as a "
      "ChunkDataset, is for lockstep::torch_iterable_dataset()");
  const int64_t size = detail::known_size(dataset.size());
  auto shared = std::make_shared<detail::DatasetOfThreads<D>>(std::move(dataset));
  return {.size = size, .collate = [shared, to_batch](const std::vector<int64_t>& indices) {
            const std::vector<size_t> numbers(indices.begin(), indices.end());
            return Batch(to_batch(shared->with([&](D& own) { return own.get_batch(numbers); })));
          }};
}

/// What torch_iterable_dataset() takes.
struct TorchIterableOptions {
  int64_t epoch_size = 0;  ///< samples in a pass of a StreamDataset, which has no end; 0: it ends itself
};

/// A data set of LibTorch's that gives its samples one after the other: a StatefulDataset such as ChunkDataset (put into
/// torch::data::datasets::make_shared_dataset(), since it cannot be moved), or a StreamDataset, also with map(). Each
/// pass begins with its reset(). Batches and `to_batch` are as for torch_dataset().
///
///     auto chunks = torch::data::datasets::make_shared_dataset<Chunks>(reader, chunk_sampler, example_sampler, options);
///     lockstep::DataLoader loader(lockstep::torch_iterable_dataset(chunks), {.num_replicas = 1, .rank = 0}, {.batch_size = 32});
///
/// get_batch() is called by one worker at a time, in the order of the batches, so that any number of workers gives what
/// none gives; `to_batch` runs on all of them. For one loader at a time. Throws ValueError for an epoch_size that is missing or has no meaning.
template <class D, class ToBatch = detail::BatchOfExamples>
IterableDataset torch_iterable_dataset(D dataset, const TorchIterableOptions& options = {},
                                       ToBatch to_batch = {}) {
  static_assert(!detail::takes_numbers<D>,
                "torch_iterable_dataset: get_batch() of this data set takes a list of numbers; give it to "
                "lockstep::torch_dataset()");
  static_assert(detail::takes_numbers<D> || detail::takes_a_count<D>,
                "torch_iterable_dataset: get_batch() of this data set takes no number of samples");
  using Given = std::remove_cvref_t<decltype(dataset.get_batch(size_t{}))>;
  constexpr bool kEndsItself = detail::is_optional<Given>::value;
  detail::check_epoch_size(options.epoch_size, kEndsItself);
  struct Pass {
    D dataset;
    int64_t left;
  };
  auto pass = std::make_shared<Pass>(std::move(dataset), options.epoch_size);
  const int64_t epoch_size = options.epoch_size;
  return {.begin =
              [pass, epoch_size] {
                pass->left = epoch_size;
                if constexpr (kEndsItself) pass->dataset.reset();
              },
          .next = [pass, to_batch](int64_t batch_size) -> std::function<Batch()> {
            const auto make = [&](auto samples) -> std::function<Batch()> {
              // A std::function is copied; the samples are not.
              auto kept = std::make_shared<decltype(samples)>(std::move(samples));
              return [kept, to_batch] { return Batch(to_batch(std::move(*kept))); };
            };
            if constexpr (kEndsItself) {
              auto samples = pass->dataset.get_batch(static_cast<size_t>(batch_size));
              return samples ? make(*std::move(samples)) : std::function<Batch()>();
            } else {
              const int64_t count = std::min(batch_size, pass->left);
              if (count == 0) return {};
              auto samples = pass->dataset.get_batch(static_cast<size_t>(count));
              pass->left -= count;
              return make(std::move(samples));
            }
          }};
}

}  // namespace lockstep
