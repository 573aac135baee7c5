#include "tools/data/sentiment.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"
#include "tools/data/csv_row.h"

namespace lockstep::tools {
namespace {

std::string error_of(std::string_view content) {
  try {
    parse_ratings(content, "ratings.txt");
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseRatings, ReadsIdRatingAndText) {
  const auto ratings =
      parse_ratings("1_1\t-0.9\t  bad, \"really\"\tbad \r\n\r\n2\t2.5\tcaf\xE9\n3\t1e-1\tend", "r.txt");
  ASSERT_EQ(ratings.size(), 3u);
  EXPECT_EQ(ratings[0].id, "1_1");
  EXPECT_EQ(ratings[0].rating, -0.9);
  EXPECT_EQ(ratings[0].text, "bad, \"really\"\tbad");
  EXPECT_EQ(ratings[1].text, "caf\xC3\xA9");
  EXPECT_EQ(ratings[2].rating, 0.1);
  EXPECT_EQ(ratings[2].text, "end");
}

TEST(ParseRatings, NamesFileAndLine) {
  EXPECT_EQ(error_of("1\t1\tgood\n2\tfine\n"), "ratings.txt:2: expected id TAB mean rating TAB text");
  EXPECT_EQ(error_of("1\t1.0x\tgood\n"), "ratings.txt:1: the rating '1.0x' is no number");
  EXPECT_EQ(error_of("1\tnan\tgood\n"), "ratings.txt:1: the rating 'nan' is no number");
  EXPECT_EQ(error_of("\n \t1\tgood\n"), "ratings.txt:2: expected id TAB mean rating TAB text");
  EXPECT_EQ(error_of("1\t1\tgood \x81 \xE9\n"), "ratings.txt:1: byte 0x81 is neither UTF-8 nor Windows-1252");
  EXPECT_EQ(error_of("\n\n"), "ratings.txt is empty: expected lines of id TAB mean rating TAB text");
}

TEST(Split, IsFixedForEver) {
  // The demo's figures depend on these: a change of the hash or of the names would change the test set.
  int counts[3] = {};
  for (int i = 0; i < 10000; ++i) ++counts[static_cast<int>(split_of("movie-" + std::to_string(i)))];
  EXPECT_EQ(counts[0], 8020);
  EXPECT_EQ(counts[1], 993);
  EXPECT_EQ(counts[2], 987);
}

TEST(Split, ADocumentIsTheIdUpToTheUnderscore) {
  EXPECT_EQ(document_of("amazon", "12_3"), "amazon-12");
  EXPECT_EQ(document_of("movie", "12"), "movie-12");
}

std::vector<SentimentExample> all_of(const SentimentCorpus& corpus) {
  std::vector<SentimentExample> all;
  for (const auto split : {Split::train, Split::validation, Split::test}) {
    all.insert(all.end(), corpus.split(split).begin(), corpus.split(split).end());
  }
  return all;
}

TEST(SentimentCorpus, LeavesOutNeutralAndDuplicateSentences) {
  SentimentCorpus corpus(0.5);
  corpus.add("movie",
             {{"1", 0.5, "Good film"}, {"2", -0.5, "bad film"}, {"3", 0.49, "a film"}, {"4", -0.4, "film"}});
  corpus.add("nyt", {{"1_1", -3, "good \t FILM"}, {"1_2", 3, "good film!"}});
  EXPECT_EQ(corpus.neutral(), 2);
  EXPECT_EQ(corpus.duplicates(), 1);
  std::set<std::pair<std::string, bool>> labels;
  for (const auto& example : all_of(corpus)) labels.emplace(example.text, example.positive);
  EXPECT_EQ(labels, (std::set<std::pair<std::string, bool>>{
                        {"Good film", true}, {"bad film", false}, {"good film!", true}}));
  EXPECT_THROW(SentimentCorpus(0), ValueError);
  EXPECT_THROW(SentimentCorpus(-1), ValueError);
}

TEST(SentimentCorpus, ADocumentIsInOneSplit) {
  SentimentCorpus corpus(0.5);
  std::vector<RatedText> ratings;
  for (int document = 0; document < 200; ++document) {
    for (int sentence = 0; sentence < 5; ++sentence) {
      const auto id = std::to_string(document) + "_" + std::to_string(sentence);
      ratings.push_back({id, 1, "sentence " + id});
    }
  }
  corpus.add("amazon", ratings);
  std::set<std::string> documents;
  size_t held = 0;
  for (const auto split : {Split::train, Split::validation, Split::test}) {
    std::set<std::string> here;
    for (const auto& example : corpus.split(split)) here.insert(example.document);
    EXPECT_FALSE(here.empty());
    held += here.size();
    documents.merge(here);
  }
  EXPECT_EQ(held, 200u);
  EXPECT_EQ(documents.size(), 200u);
}

TEST(SentimentCsv, HasTheColumnsOfTheDemo) {
  EXPECT_EQ(sentiment_csv({{"a, b", true, "movie", "movie-1"}, {"c", false, "nyt", "nyt-2"}}),
            "text,label,source,document\n\"a, b\",positive,movie,movie-1\nc,negative,nyt,nyt-2\n");
}

TEST(CsvRow, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_row({"plain", "", "a,b", "say \"hi\"", "two\nlines", " tab\t"}),
            "plain,,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\", tab\t\n");
  EXPECT_EQ(csv_row({""}), "\"\"\n");
}

}  // namespace
}  // namespace lockstep::tools
