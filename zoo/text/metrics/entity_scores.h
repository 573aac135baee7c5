// Entities in labeled words, scored whole: seqeval's precision, recall and F1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/metrics/metric.h"

namespace lockstep::text {

/// Words that form one entity.
struct Entity {
  std::string type;   ///< "PER" of B-PER; "_" of a label without a type
  int64_t first = 0;  ///< place of its first word
  int64_t last = 0;   ///< place of its last word
  bool operator==(const Entity&) const = default;
};

/// The entities of a sentence whose words have these labels, as seqeval's default mode (conlleval) finds them: B begins
/// one, I and E continue one of their type and begin one otherwise, S is one, O is none. It reads the schemes IOB1,
/// IOB2, IOE and IOBES. In order of their ends.
std::vector<Entity> find_entities(const std::vector<std::string>& labels);

/// The labels that are neither O nor B, I, E or S with or without "-TYPE": seqeval warns of them.
std::vector<std::string> find_unusual_labels(const std::vector<std::string>& labels);

/// How EntityMetric counts.
struct EntityMetricOptions {
  std::string type{};           ///< only entities of this type; empty: all, together ("micro")
  std::string name{};           ///< in place of "precision", "recall", "f1" or "number"
  int64_t ignore_index = -100;  ///< labels of this value are left out, with their words
};

/// "precision", "recall", "f1": entities that have a predicted one's first and last word and type. They take scores
/// [sentences, words, labels], or the predicted labels [sentences, words], and labels [sentences, words]: places in
/// `labels`. A score without a denominator is 0. update() throws ValueError for other shapes and for places that are
/// not there.
std::shared_ptr<Metric> entity_precision(const std::vector<std::string>& labels,
                                         EntityMetricOptions options = {});
/// See entity_precision().
std::shared_ptr<Metric> entity_recall(const std::vector<std::string>& labels,
                                      EntityMetricOptions options = {});
/// See entity_precision().
std::shared_ptr<Metric> entity_f1(const std::vector<std::string>& labels, EntityMetricOptions options = {});
/// "number": how many entities are labeled, seqeval's support.
std::shared_ptr<Metric> entity_number(const std::vector<std::string>& labels,
                                      EntityMetricOptions options = {});

/// The types in `labels`, sorted.
std::vector<std::string> entity_types(const std::vector<std::string>& labels);

}  // namespace lockstep::text
