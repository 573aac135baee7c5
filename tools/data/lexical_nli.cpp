#include "tools/data/lexical_nli.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "tools/data/csv_row.h"

namespace lockstep::tools {
namespace {

/// The fields of a line, one after another.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) {}
  std::string_view next() {
    const size_t begin = std::min(rest_.find_first_not_of(' '), rest_.size());
    const size_t end = std::min(rest_.find(' ', begin), rest_.size());
    if (begin == end) throw ValueError("the line ends too early");
    const auto field = rest_.substr(begin, end - begin);
    rest_.remove_prefix(end);
    return field;
  }
  int64_t number(int base = 10) {
    const auto field = next();
    return to_number(field, base);
  }
  static int64_t to_number(std::string_view field, int base) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, base);
    if (error != std::errc() || end != field.data() + field.size()) {
      throw ValueError(fmt::format("'{}' is no number", field));
    }
    return value;
  }

 private:
  std::string_view rest_;
};

Synset parse_synset(std::string_view line) {
  Fields fields(line);
  Synset synset;
  synset.offset = fields.number();
  fields.next();  // the lexicographer's file
  const auto part = fields.next();
  for (int64_t words = fields.number(16); words > 0; --words) {
    std::string word(fields.next());
    std::replace(word.begin(), word.end(), '_', ' ');
    synset.words.push_back(std::move(word));
    fields.next();  // the word's number in that file
  }
  for (int64_t pointers = fields.number(); pointers > 0; --pointers) {
    const auto symbol = fields.next();
    const int64_t target = fields.number();
    const auto target_part = fields.next();
    const auto words = fields.next();
    if (words.size() != 4) throw ValueError(fmt::format("'{}' is no pair of word numbers", words));
    if ((symbol != "@" && symbol != "!") || target_part != part) continue;
    synset.pointers.push_back({symbol[0], target, static_cast<int>(Fields::to_number(words.substr(0, 2), 16)),
                               static_cast<int>(Fields::to_number(words.substr(2), 16))});
  }
  if (synset.words.empty()) throw ValueError("a synset without words");
  return synset;
}

using Labels = std::array<std::string_view, 3>;
constexpr Labels kLabels = {"entailment", "neutral", "contradiction"};

uint64_t place_of(const LexicalPair& pair) {
  const std::string key = pair.premise + '\t' + pair.hypothesis;
  return XXH3_64bits(key.data(), key.size());
}

}  // namespace

std::vector<Synset> parse_synsets(std::string_view content, const std::string& name) {
  std::vector<Synset> synsets;
  int64_t number = 0;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    const auto line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    ++number;
    if (line.empty() || line.front() == ' ') continue;  // the licence
    try {
      synsets.push_back(parse_synset(line));
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}:{}: no line of a WordNet data file: {}", name, number, error.what()));
    }
  }
  if (synsets.empty()) throw FileError(fmt::format("{} has no synsets: expected WordNet's data file", name));
  return synsets;
}

std::vector<LexicalPair> lexical_pairs(const std::vector<Synset>& synsets, const std::string& part,
                                       size_t most) {
  std::unordered_map<int64_t, const Synset*> by_offset;
  std::map<int64_t, std::vector<const Synset*>> below;  // by hypernym
  for (const Synset& synset : synsets) by_offset[synset.offset] = &synset;
  // Of each pair of words what it may be: more than one label means that the words have several meanings.
  std::map<std::pair<std::string, std::string>, LexicalPair> pairs;
  std::map<std::pair<std::string, std::string>, bool> is_ambiguous;
  const auto add = [&](const std::string& premise, const std::string& hypothesis, std::string_view label,
                       int64_t offset) {
    if (premise == hypothesis) return;
    const auto [found, is_new] =
        pairs.try_emplace({premise, hypothesis},
                          LexicalPair{premise, hypothesis, label, fmt::format("{}-{:08}", part, offset)});
    if (!is_new && found->second.label != label) is_ambiguous[found->first] = true;
  };
  for (const Synset& synset : synsets) {
    for (const Synset::Pointer& pointer : synset.pointers) {
      const auto found = by_offset.find(pointer.target);
      if (found == by_offset.end()) {
        throw FileError(fmt::format("WordNet's {}s: synset {:08} points to {:08}, which is not there", part,
                                    synset.offset, pointer.target));
      }
      const Synset& target = *found->second;
      if (pointer.relation == '@') {
        add(synset.words.front(), target.words.front(), kLabels[0], synset.offset);
        below[target.offset].push_back(&synset);
        continue;
      }
      const auto word = [](const Synset& of, int number) -> const std::string& {
        return of.words[std::min(static_cast<size_t>(std::max(number, 1)), of.words.size()) - 1];
      };
      // Both directions of an antonymy fall into one split.
      add(word(synset, pointer.source_word), word(target, pointer.target_word), kLabels[2],
          std::min(synset.offset, target.offset));
    }
  }
  for (const auto& [hypernym, sisters] : below) {
    for (size_t i = 0; i + 1 < sisters.size(); ++i) {
      add(sisters[i]->words.front(), sisters[i + 1]->words.front(), kLabels[1], sisters[i]->offset);
    }
  }
  std::map<std::string_view, std::vector<LexicalPair>> by_label;
  for (auto& [words, pair] : pairs) {
    if (!is_ambiguous.contains(words)) by_label[pair.label].push_back(std::move(pair));
  }
  size_t each = most == 0 ? pairs.size() : most;
  for (const auto label : kLabels) each = std::min(each, by_label[label].size());
  std::vector<LexicalPair> chosen;
  const auto by_place = [](const LexicalPair& a, const LexicalPair& b) { return place_of(a) < place_of(b); };
  for (const auto label : kLabels) {
    auto& of_label = by_label[label];
    std::sort(of_label.begin(), of_label.end(), by_place);
    chosen.insert(chosen.end(), of_label.begin(), of_label.begin() + static_cast<std::ptrdiff_t>(each));
  }
  std::sort(chosen.begin(), chosen.end(), by_place);
  return chosen;
}

std::string lexical_csv(const std::vector<LexicalPair>& pairs) {
  std::string csv = csv_row({"premise", "hypothesis", "label", "synset"});
  for (const LexicalPair& pair : pairs)
    csv += csv_row({pair.premise, pair.hypothesis, pair.label, pair.synset});
  return csv;
}

}  // namespace lockstep::tools
