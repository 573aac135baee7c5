// The demo's data set: sentences that people rated, from the corpus inside the vaderSentiment package, as
// files for training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace lockstep::tools {

/// One line of a ground-truth file: id TAB mean rating TAB text.
struct RatedText {
  std::string id;
  double rating;     ///< mean over the raters, -4 (extremely negative) to 4
  std::string text;  ///< UTF-8, no white space around it
};

/// The lines of `content`; `name` stands in errors. Lines may end in CRLF and may be Windows-1252 instead of
/// UTF-8. Throws FileError naming `name` and the line: no three fields, a rating that is no number, no id or
/// text, no lines.
std::vector<RatedText> parse_ratings(std::string_view content, const std::string& name);

enum class Split { train, validation, test };

/// The same document always falls into the same split: XXH3 (64 bits, no seed) of its name, modulo 10; 8 is
/// validation, 9 test, the rest train.
Split split_of(std::string_view document);

/// The document of a sentence: `source`, a dash and the id up to its underscore ("amazon-12" for 12_3).
std::string document_of(std::string_view source, std::string_view id);

struct SentimentExample {
  std::string text;
  bool positive;
  std::string source;    ///< movie, amazon, tweets or nyt
  std::string document;  ///< sentences of one review or article share it
};

/// Collects the parts and gives out the splits.
class SentimentCorpus {
 public:
  /// Sentences whose rating is nearer to 0 than min_rating are left out. Throws ValueError unless it is above
  /// 0.
  explicit SentimentCorpus(double min_rating);

  /// Adds a part. A text that was there before, in any part, is left out: equal but for the case of ASCII
  /// letters and white space.
  void add(const std::string& source, const std::vector<RatedText>& ratings);

  /// In the order in which they were added.
  const std::vector<SentimentExample>& split(Split split) const;
  int64_t neutral() const { return neutral_; }
  int64_t duplicates() const { return duplicates_; }

 private:
  double min_rating_;
  int64_t neutral_ = 0;
  int64_t duplicates_ = 0;
  std::array<std::vector<SentimentExample>, 3> splits_;
  std::unordered_set<std::string> seen_;
};

/// CSV with the columns text, label (positive or negative), source, document.
std::string sentiment_csv(const std::vector<SentimentExample>& examples);

}  // namespace lockstep::tools
