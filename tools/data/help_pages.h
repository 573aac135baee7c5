// Paragraphs of two translations of the same help pages, as pairs of sentences.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tools/data/sentiment.h"

namespace lockstep::tools {

struct Paragraph {
  std::string id;    ///< par_id3154044
  std::string text;  ///< UTF-8 on one line, one space between words
};

/// The paragraphs and headings of a page of LibreOffice's help that have an id and text, in the page's order: p and h1
/// to h6, without the marks inside them. Of one id the first counts. Throws ValueError for text that is not UTF-8.
std::vector<Paragraph> help_paragraphs(std::string_view html);

/// Collects pages and gives out the splits.
class HelpPairs {
 public:
  using Pair = std::pair<std::string, std::string>;  ///< source, target
  /// Adds a page: its paragraphs in both languages, joined by id. A pair that was there before, in any page, is
  /// left out, and so is a paragraph that nobody has translated. All pairs of a page fall into the split
  /// of its name (split_of).
  void add(std::string_view page, const std::vector<Paragraph>& source, const std::vector<Paragraph>& target);

  const std::vector<Pair>& split(Split split) const { return splits_[static_cast<size_t>(split)]; }
  int64_t pages() const { return pages_; }
  int64_t duplicates() const { return duplicates_; }
  int64_t untranslated() const { return untranslated_; }

 private:
  std::array<std::vector<Pair>, 3> splits_;
  std::unordered_set<std::string> seen_;
  int64_t pages_ = 0, duplicates_ = 0, untranslated_ = 0;
};

}  // namespace lockstep::tools
