#include "lockstep/zoo/models/transformer/generator.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

// The sentence that is decoded in one place of the state; drop() of both keeps them in step.
struct Place {
  size_t sentence = 0;
  size_t most_tokens = 0;
  std::vector<std::vector<int64_t>> ids;  ///< of each beam
  std::vector<double> scores;             ///< sums of logarithms
  std::vector<Generated> ended;
};

// Puts the module back into training when it came so, also behind an error.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module) : module_(module), training_(module.is_training()) {
    module.eval();
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;
  ~EvalMode() {
    if (training_) module_.train();
  }

 private:
  torch::nn::Module& module_;
  bool training_;
};

class Search {
 public:
  /// `most_tokens`: of each sentence.
  Search(DecoderState& state, const GenerateOptions& options, const std::vector<size_t>& most_tokens,
         int64_t pad_token_id)
      : state_(state),
        options_(options),
        pad_token_id_(pad_token_id),
        beams_(static_cast<size_t>(options.num_beams)) {
    result_.sentences.resize(most_tokens.size());
    for (size_t i = 0; i < most_tokens.size(); ++i) {
      Place place{.sentence = i,
                  .most_tokens = most_tokens[i],
                  .ids = std::vector<std::vector<int64_t>>(beams_),
                  .scores = {},
                  .ended = {}};
      place.scores.assign(beams_, -std::numeric_limits<double>::infinity());
      place.scores[0] = 0;  // all beams are the same before the first token
      places_.push_back(std::move(place));
    }
  }

  GenerateResult run() {
    at::Tensor ids = at::full({rows()}, options_.start_token_id, at::kLong);
    for (length_ = 1; !places_.empty(); ++length_) {
      result_.row_steps += rows();
      const at::Tensor logits = state_.step(ids);
      ids = beams_ == 1 ? greedy(logits) : beam(logits);
    }
    return std::move(result_);
  }

 private:
  bool is_last(const Place& place) const { return length_ >= place.most_tokens; }
  int64_t rows() const { return static_cast<int64_t>(places_.size() * beams_); }

  enum class Ending : uint8_t { end_of_sentence, most_tokens };

  Generated make_generated(std::vector<int64_t> ids, double score, Ending ending) const {
    const bool finished = ending == Ending::end_of_sentence;
    const auto length = static_cast<double>(ids.size() + (finished ? 1 : 0));
    return {.ids = std::move(ids),
            .score = score / std::pow(std::max(length, 1.0), options_.length_penalty),
            .finished = finished};
  }

  // Padding is never chosen. Its probability goes to no other word: scores are those of the model.
  void exclude_padding(const at::Tensor& of_words) const {
    of_words.select(1, pad_token_id_).fill_(-std::numeric_limits<double>::infinity());
  }

  // From the last place to the first, so that the one which moves has been looked at.
  template <class Done>
  std::vector<size_t> drop_where(const Done& done) {
    std::vector<size_t> order(places_.size());  // which of the places before is where now
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = places_.size(); i-- > 0;) {
      if (!done(places_[i])) continue;
      auto& place = places_[i];
      const auto best = std::max_element(place.ended.begin(), place.ended.end(),
                                         [](const auto& a, const auto& b) { return a.score < b.score; });
      result_.sentences[place.sentence] = std::move(*best);
      state_.drop(static_cast<int64_t>(i));
      if (i + 1 < places_.size()) place = std::move(places_.back());
      places_.pop_back();
      order[i] = order.back();
      order.pop_back();
    }
    return order;
  }

  at::Tensor greedy(const at::Tensor& logits) {
    const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor total = at::logsumexp(logits.to(type), {1});
    exclude_padding(logits);
    const at::Tensor next = logits.argmax(-1);
    const at::Tensor chance = logits.gather(1, next.unsqueeze(1)).squeeze(1).sub(total).to(at::kDouble);
    const auto* id = next.const_data_ptr<int64_t>();
    const auto* logarithm = chance.const_data_ptr<double>();
    for (size_t i = 0; i < places_.size(); ++i) {
      auto& place = places_[i];
      place.scores[0] += logarithm[i];
      const bool end = id[i] == options_.eos_token_id;
      if (!end) place.ids[0].push_back(id[i]);
      if (end || is_last(place)) {
        place.ended.push_back(make_generated(place.ids[0], place.scores[0],
                                             end ? Ending::end_of_sentence : Ending::most_tokens));
      }
    }
    drop_where([](const Place& place) { return !place.ended.empty(); });
    return next_ids([](const Place& place) { return std::vector<int64_t>{place.ids[0].back()}; });
  }

  at::Tensor beam(const at::Tensor& logits) {
    const auto sentences = static_cast<int64_t>(places_.size());
    const int64_t vocabulary = logits.size(1), beams = options_.num_beams;
    std::vector<double> before;
    for (const auto& place : places_) before.insert(before.end(), place.scores.begin(), place.scores.end());
    const at::Tensor log_probs = at::log_softmax(logits, -1, at::kDouble);
    exclude_padding(log_probs);
    const at::Tensor sums = log_probs + at::tensor(before, at::kDouble).unsqueeze(1);
    const auto [values, indices] =
        at::topk(sums.view({sentences, beams * vocabulary}), std::min(2 * beams, beams * vocabulary));
    const auto* value = values.const_data_ptr<double>();
    const auto* index = indices.const_data_ptr<int64_t>();
    const int64_t candidates = values.size(1);
    std::vector<std::vector<int64_t>> origins;
    for (auto& place : places_) {
      origins.push_back(choose(place, {value, static_cast<size_t>(candidates)}, index, vocabulary));
      value += candidates;
      index += candidates;
    }
    const auto order =
        drop_where([&](const Place& place) { return is_last(place) || place.ended.size() >= beams_; });
    if (places_.empty()) return {};
    std::vector<int64_t> from;
    for (size_t i = 0; i < order.size(); ++i) {
      for (const int64_t origin : origins[order[i]]) from.push_back(static_cast<int64_t>(i) * beams + origin);
    }
    state_.reorder(at::tensor(from, at::kLong));
    return next_ids([](const Place& place) {
      std::vector<int64_t> ids;
      for (const auto& beam : place.ids) ids.push_back(beam.empty() ? 0 : beam.back());
      return ids;
    });
  }

  // An end of sentence counts where it is among the first num_beams candidates, so that one beam is greedy. Returns the
  // beam that each new one goes on from.
  std::vector<int64_t> choose(Place& place, std::span<const double> scores, const int64_t* index,
                              int64_t vocabulary) {
    std::vector<std::vector<int64_t>> ids;
    std::vector<double> sums;
    std::vector<int64_t> origins;
    for (size_t c = 0; c < scores.size() && ids.size() < beams_; ++c) {
      if (!std::isfinite(scores[c])) break;  // fewer candidates than beams: a tiny vocabulary
      const int64_t origin = index[c] / vocabulary, id = index[c] % vocabulary;
      const auto& before = place.ids[static_cast<size_t>(origin)];
      if (id == options_.eos_token_id) {
        if (c < beams_) place.ended.push_back(make_generated(before, scores[c], Ending::end_of_sentence));
        continue;
      }
      ids.push_back(before);
      ids.back().push_back(id);
      sums.push_back(scores[c]);
      origins.push_back(origin);
    }
    if (is_last(place)) {
      for (size_t i = 0; i < ids.size() && place.ended.size() < beams_; ++i)
        place.ended.push_back(make_generated(ids[i], sums[i], Ending::most_tokens));
      // Without any candidate: the logits are not numbers.
      if (place.ended.empty())
        place.ended.push_back(
            make_generated(place.ids[0], -std::numeric_limits<double>::infinity(), Ending::most_tokens));
    }
    while (ids.size() < beams_) {
      ids.push_back(ids.empty() ? place.ids[0] : ids.back());
      sums.push_back(-std::numeric_limits<double>::infinity());
      origins.push_back(origins.empty() ? 0 : origins.back());
    }
    place.ids = std::move(ids);
    place.scores = std::move(sums);
    return origins;
  }

  template <class Ids>
  at::Tensor next_ids(const Ids& ids_of) const {
    std::vector<int64_t> ids;
    for (const auto& place : places_) {
      for (const int64_t id : ids_of(place)) ids.push_back(id);
    }
    return at::tensor(ids, at::kLong);
  }

  DecoderState& state_;
  const GenerateOptions& options_;
  int64_t pad_token_id_;
  size_t length_ = 0;  ///< tokens of every row, with the one that is being chosen
  size_t beams_;
  std::vector<Place> places_;
  GenerateResult result_;
};

}  // namespace

at::Tensor pad_ids(const std::vector<std::vector<int64_t>>& sentences, int64_t pad_token_id) {
  size_t longest = 0;
  for (const auto& ids : sentences) longest = std::max(longest, ids.size());
  at::Tensor all = at::full({static_cast<int64_t>(sentences.size()), static_cast<int64_t>(longest)},
                            pad_token_id, at::kLong);
  auto* row = all.data_ptr<int64_t>();
  for (const auto& ids : sentences) {
    std::copy(ids.begin(), ids.end(), row);
    row += longest;
  }
  return all;
}

Generator::Generator(Transformer model) : model_(std::move(model)), weights_(*model_) {}

GenerateResult Generator::generate(const std::vector<std::vector<int64_t>>& sources,
                                   const GenerateOptions& options) {
  if (options.num_beams < 1)
    throw ValueError(fmt::format("num_beams is {}; it must be 1 or more", options.num_beams));
  if (options.max_new_tokens < 0)
    throw ValueError(fmt::format("max_new_tokens is {}; it must be 0 or more", options.max_new_tokens));
  const auto& sizes = model_->config();
  if (options.start_token_id < 0 || options.start_token_id >= sizes.target_vocab_size ||
      options.start_token_id == sizes.pad_token_id) {
    throw ValueError(
        fmt::format("start_token_id is {}; it must be a target word's, from 0 to {}, and not the padding's",
                    options.start_token_id, sizes.target_vocab_size - 1));
  }
  if (options.eos_token_id == sizes.pad_token_id) {
    throw ValueError(
        fmt::format("eos_token_id is {}, the padding's, which is never chosen", options.eos_token_id));
  }
  if (sources.empty()) return {};
  const c10::InferenceMode no_gradients;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const EvalMode eval(*model_);
  const auto& config = model_->config();
  const at::Tensor source_ids = pad_ids(sources, config.pad_token_id);
  const auto state = options.use_cache
                         ? cached_decoder(*model_, weights_, model_->encode(source_ids), options.num_beams)
                         : uncached_decoder(*model_, source_ids, options.num_beams);
  std::vector<size_t> most;
  for (const auto& source : sources) {
    const auto wanted =
        options.max_new_tokens > 0 ? options.max_new_tokens : 2 * static_cast<int64_t>(source.size()) + 10;
    most.push_back(static_cast<size_t>(std::min(wanted, config.seq_len)));
  }
  return Search(*state, options, most, config.pad_token_id).run();
}

GenerateResult Generator::generate_all(const std::vector<std::vector<int64_t>>& sources, int64_t batch_size,
                                       const GenerateOptions& options) {
  if (batch_size < 1) throw ValueError(fmt::format("batch_size is {}; it must be 1 or more", batch_size));
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() < sources[b].size(); });
  GenerateResult all;
  all.sentences.resize(sources.size());
  for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(batch_size)) {
    const size_t end = std::min(begin + static_cast<size_t>(batch_size), order.size());
    std::vector<std::vector<int64_t>> batch;
    for (size_t i = begin; i < end; ++i) batch.push_back(sources[order[i]]);
    auto some = generate(batch, options);
    for (size_t i = begin; i < end; ++i) all.sentences[order[i]] = std::move(some.sentences[i - begin]);
    all.row_steps += some.row_steps;
  }
  return all;
}

}  // namespace lockstep::models
