#include "lockstep/zoo/text/metrics/entity_scores.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::text {
namespace {

struct Tag {
  char prefix = 'O';
  std::string_view type = "_";
};

// "B-PER": B and PER; seqeval also reads "BPER" so.
Tag tag_of(std::string_view label) {
  if (label.empty()) return {};
  std::string_view type = label.substr(1);
  if (const size_t dash = type.find('-'); dash != std::string_view::npos) type.remove_prefix(dash + 1);
  return {label[0], type.empty() ? "_" : type};
}

bool is_outside(char prefix) { return prefix == 'O' || prefix == '.'; }

bool ends_between(const Tag& before, const Tag& tag) {
  if (before.prefix == 'E' || before.prefix == 'S') return true;
  if (before.prefix == 'B' || before.prefix == 'I') {
    if (tag.prefix == 'B' || tag.prefix == 'S' || tag.prefix == 'O') return true;
  }
  return !is_outside(before.prefix) && before.type != tag.type;
}

bool begins_between(const Tag& before, const Tag& tag) {
  if (tag.prefix == 'B' || tag.prefix == 'S') return true;
  if (tag.prefix == 'E' || tag.prefix == 'I') {
    if (before.prefix == 'E' || before.prefix == 'S' || before.prefix == 'O') return true;
  }
  return !is_outside(tag.prefix) && before.type != tag.type;
}

/// Calls on_entity(type, first, last).
template <class OnEntity>
void for_each_entity(const std::vector<Tag>& tags, const OnEntity& on_entity) {
  Tag before;
  int64_t first = 0;
  for (size_t i = 0; i <= tags.size(); ++i) {
    const Tag tag = i < tags.size() ? tags[i] : Tag{};
    if (ends_between(before, tag)) on_entity(before.type, first, static_cast<int64_t>(i) - 1);
    if (begins_between(before, tag)) first = static_cast<int64_t>(i);
    before = tag;
  }
}

enum class Score { precision, recall, f1, number };

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

/// State: entities that were predicted rightly, predicted ones, labeled ones.
class EntityMetric : public Metric {
 public:
  EntityMetric(Score score, std::vector<std::string> labels, EntityMetricOptions options)
      : score_(score), labels_(std::move(labels)), options_(std::move(options)) {
    for (const auto& label : labels_) tags_.push_back(tag_of(label));
  }
  std::string name() const override {
    if (!options_.name.empty()) return options_.name;
    constexpr const char* kNames[] = {"precision", "recall", "f1", "number"};
    return kNames[static_cast<size_t>(score_)];
  }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const bool are_scores = outputs.dim() == 3 && outputs.sizes().slice(0, 2) == labels.sizes() &&
                            outputs.size(2) == static_cast<int64_t>(labels_.size());
    if (labels.dim() != 2 || !(are_scores || outputs.sizes() == labels.sizes())) {
      throw ValueError(fmt::format(
          "the metric {} got outputs of shape {} and labels of shape {}; it takes scores [sentences, "
          "words, {}] or labels [sentences, words], and labels [sentences, words]",
          name(), c10::str(outputs.sizes()), c10::str(labels.sizes()), labels_.size()));
    }
    const at::Tensor predicted =
        (are_scores ? outputs.detach().argmax(2) : outputs.detach()).to(at::kCPU, at::kLong).contiguous();
    const at::Tensor right = labels.detach().to(at::kCPU, at::kLong).contiguous();
    const int64_t words = right.size(1);
    for (int64_t sentence = 0; sentence < right.size(0); ++sentence) {
      add(predicted.const_data_ptr<int64_t>() + sentence * words,
          right.const_data_ptr<int64_t>() + sentence * words, words);
    }
  }

 private:
  const Tag& tag(int64_t label) const {
    if (label >= 0 && label < static_cast<int64_t>(tags_.size())) return tags_[static_cast<size_t>(label)];
    throw ValueError(fmt::format("the metric {} got the label {}; there are the {} labels 0 to {}", name(),
                                 label, tags_.size(), tags_.size() - 1));
  }
  void add(const int64_t* predicted, const int64_t* right, int64_t words) {
    std::vector<Tag> found, wanted;
    for (int64_t word = 0; word < words; ++word) {
      if (right[word] == options_.ignore_index) continue;
      found.push_back(tag(predicted[word]));
      wanted.push_back(tag(right[word]));
    }
    using Place = std::pair<std::string_view, std::pair<int64_t, int64_t>>;
    std::set<Place> labeled;
    double common = 0, guesses = 0;
    const auto counts = [&](std::string_view type) { return options_.type.empty() || type == options_.type; };
    for_each_entity(wanted, [&](std::string_view type, int64_t first, int64_t last) {
      if (counts(type)) labeled.insert({type, {first, last}});
    });
    for_each_entity(found, [&](std::string_view type, int64_t first, int64_t last) {
      if (!counts(type)) return;
      ++guesses;
      common += static_cast<double>(labeled.count({type, {first, last}}));
    });
    merge(state_, {common, guesses, static_cast<double>(labeled.size())});
  }
  double value_of(const State& state) const override {
    if (state.empty()) return 0;
    switch (score_) {
      case Score::precision:
        return ratio(state[0], state[1]);
      case Score::recall:
        return ratio(state[0], state[2]);
      case Score::f1:
        return ratio(2 * state[0], state[1] + state[2]);
      case Score::number:
        return state[2];
    }
    return 0;
  }
  Score score_;
  std::vector<std::string> labels_;
  std::vector<Tag> tags_{};
  EntityMetricOptions options_;
};

}  // namespace

std::vector<Entity> find_entities(const std::vector<std::string>& labels) {
  std::vector<Tag> tags;
  for (const auto& label : labels) tags.push_back(tag_of(label));
  std::vector<Entity> entities;
  for_each_entity(tags, [&](std::string_view type, int64_t first, int64_t last) {
    entities.push_back({.type = std::string(type), .first = first, .last = last});
  });
  return entities;
}

std::vector<std::string> find_unusual_labels(const std::vector<std::string>& labels) {
  std::vector<std::string> unusual;
  for (const auto& label : labels) {
    const bool is_usual =
        label == "O" ||
        (!label.empty() && std::string_view("BIES").find(label[0]) != std::string_view::npos &&
         (label.size() == 1 || label[1] == '-'));
    if (!is_usual) unusual.push_back(label);
  }
  return unusual;
}

std::vector<std::string> entity_types(const std::vector<std::string>& labels) {
  std::set<std::string> types;
  for (const auto& label : labels) {
    if (const Tag tag = tag_of(label); !is_outside(tag.prefix)) types.emplace(tag.type);
  }
  return {types.begin(), types.end()};
}

std::shared_ptr<Metric> entity_precision(const std::vector<std::string>& labels,
                                         EntityMetricOptions options) {
  return std::make_shared<EntityMetric>(Score::precision, labels, std::move(options));
}
std::shared_ptr<Metric> entity_recall(const std::vector<std::string>& labels, EntityMetricOptions options) {
  return std::make_shared<EntityMetric>(Score::recall, labels, std::move(options));
}
std::shared_ptr<Metric> entity_f1(const std::vector<std::string>& labels, EntityMetricOptions options) {
  return std::make_shared<EntityMetric>(Score::f1, labels, std::move(options));
}
std::shared_ptr<Metric> entity_number(const std::vector<std::string>& labels, EntityMetricOptions options) {
  return std::make_shared<EntityMetric>(Score::number, labels, std::move(options));
}

}  // namespace lockstep::text
