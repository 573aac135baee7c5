#include "lockstep/zoo/tasks/text_classification.h"

#include "lockstep/zoo/tasks/predictions.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {
namespace {

using Labels = std::vector<std::string>;

tables::TextTable table(const Labels& labels) {
  return tables::TextTable("memory.csv", {"text", "label"}, {Labels(labels.size(), "a text"), labels});
}

TEST(Labels, NumbersBecomeHuggingFacesNames) {
  EXPECT_EQ(tasks::infer_labels(table({"0", "2", "0"}), "label"), (Labels{"LABEL_0", "LABEL_1", "LABEL_2"}));
}

TEST(Labels, WholeNumbersMayBeWrittenWithAFraction) {
  EXPECT_EQ(tasks::infer_labels(table({"0.0", "1.0", "2."}), "label"),
            (Labels{"LABEL_0", "LABEL_1", "LABEL_2"}));
  EXPECT_EQ(tasks::label_ids(table({"1.0", "0"}), "label", {"negative", "positive"}),
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(tasks::infer_labels(table({"0.5", "1.0"}), "label"), (Labels{"0.5", "1.0"}));
}

TEST(Labels, NamesAreSorted) {
  EXPECT_EQ(tasks::infer_labels(table({"so", "bad", "good", "bad"}), "label"), (Labels{"bad", "good", "so"}));
}

TEST(Labels, OneLabelIsAnError) {
  EXPECT_THROW(tasks::infer_labels(table({"good", "good"}), "label"), ValueError);
  EXPECT_THROW(tasks::infer_labels(table({"1", "1.0"}), "label"), ValueError);
  EXPECT_THROW(tasks::infer_labels(table({"0", "0.0"}), "label"), ValueError);
}

Labels chosen(const Labels& given, const tasks::KnownLabels& known,
              const std::optional<tables::TextTable>& train) {
  return tasks::choose_labels(given, known, train, "label").names;
}

tasks::KnownLabels trained(const Labels& names) {
  return {.names = names, .has_classifier = true, .advice = ", as the head has them"};
}

// A model with as many labels keeps its head: in another order of labels it would say the opposite.
TEST(Labels, NumbersKeepTheOrderOfATrainedClassifier) {
  const auto numbers = table({"0", "1", "0.0"});
  for (const bool has_classifier : {false, true}) {
    const auto known = [&](const Labels& names) {
      return tasks::KnownLabels{.names = names, .has_classifier = has_classifier};
    };
    EXPECT_EQ(chosen({}, known({"1", "0"}), numbers), (Labels{"1", "0"}));
    EXPECT_EQ(chosen({}, known({"LABEL_0", "LABEL_1"}), numbers), (Labels{"LABEL_0", "LABEL_1"}));
    EXPECT_EQ(chosen({}, known({"2", "1"}), table({"1", "2"})), (Labels{"2", "1"}));
  }
  EXPECT_EQ(chosen({}, {.names = {"2", "0"}}, numbers), (Labels{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(chosen({}, {.names = {"1", "0", "2"}}, numbers), (Labels{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(chosen({}, trained({"1", "0", "2"}), numbers), (Labels{"1", "0", "2"}));
  EXPECT_EQ(chosen({}, trained({"negative", "positive"}), numbers), (Labels{"negative", "positive"}));
  EXPECT_TRUE(tasks::are_same_labels({"1", "0"}, {"LABEL_0", "LABEL_1"}));
  EXPECT_TRUE(tasks::are_same_labels({"b", "a"}, {"a", "b"}));
  EXPECT_FALSE(tasks::are_same_labels({"1", "0"}, {"LABEL_1", "LABEL_0"}));  // there a number is a place
  EXPECT_FALSE(tasks::are_same_labels({"1", "0"}, {"negative", "positive"}));
  EXPECT_FALSE(tasks::are_same_labels({"1", "0"}, {"0", "1", "2"}));
  EXPECT_FALSE(tasks::are_same_labels({"1", "a"}, {"0", "1"}));
  EXPECT_FALSE(tasks::are_same_labels({"1", "0"}, {}));
}

TEST(Labels, ATrainedModelKeepsItsOrder) {
  const std::optional train = table({"negative", "positive"});
  EXPECT_EQ(chosen({}, {.names = {"positive", "negative"}}, train), (Labels{"positive", "negative"}));
  EXPECT_EQ(chosen({}, trained({"positive", "negative"}), train), (Labels{"positive", "negative"}));
  EXPECT_EQ(chosen({}, trained({"so", "positive", "negative"}), train),
            (Labels{"so", "positive", "negative"}));
  EXPECT_EQ(chosen({}, {.names = {"LABEL_0", "LABEL_1"}}, train), (Labels{"negative", "positive"}));
  EXPECT_EQ(chosen({"positive", "negative"}, trained({"a", "b"}), train), (Labels{"positive", "negative"}));
  EXPECT_EQ(chosen({}, trained({"a", "b"}), std::nullopt), (Labels{"a", "b"}));
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

// Labels that are not the head's would silently get its weights, or a new head.
TEST(Labels, ThoseThatATrainedHeadDoesNotHaveAreNamed) {
  const std::optional train = table({"good", "so", "bad"});
  EXPECT_EQ(
      error_of([&] {
        chosen({}, trained({"bad", "good"}), train);
      }),
      "memory.csv: record 2: label \"so\" in column label is unknown; expected one of bad, good or a number from "
      "0 to 1, as the head has them");
  // Nobody has named the outputs, of which there are as many.
  EXPECT_EQ(chosen({}, trained({"LABEL_0", "LABEL_1"}), table({"good", "bad"})), (Labels{"bad", "good"}));
  EXPECT_EQ(
      error_of([&] {
        chosen({}, trained({"LABEL_0", "LABEL_1"}), table({"0", "7", "1"}));
      }),
      "memory.csv: record 2: label \"7\" in column label is unknown; expected one of LABEL_0, LABEL_1 or a "
      "number from 0 to 1 (--label-names gives them names), as the head has them");
  auto known = trained({"bad", "good"});
  known.may_replace_head = true;
  const auto replaced = tasks::choose_labels({}, known, train, "label");
  EXPECT_EQ(replaced.names, (Labels{"bad", "good", "so"}));
  EXPECT_TRUE(replaced.new_head);
  const auto kept = tasks::choose_labels({}, known, table({"good", "bad"}), "label");
  EXPECT_EQ(kept.names, (Labels{"bad", "good"}));
  EXPECT_FALSE(kept.new_head);
}

TEST(Labels, WantedOnesAreThoseOfTheHead) {
  const auto wanted = [](const tasks::KnownLabels& known) {
    return tasks::choose_wanted_labels({"good", "bad"}, known).names;
  };
  EXPECT_EQ(wanted({}), (Labels{"good", "bad"}));
  EXPECT_EQ(wanted({.names = {"bad", "good"}}), (Labels{"bad", "good"}));
  EXPECT_EQ(wanted({.names = {"a", "b", "c"}}), (Labels{"good", "bad"}));
  EXPECT_EQ(wanted(trained({"bad", "good"})), (Labels{"bad", "good"}));
  EXPECT_EQ(wanted(trained({"bad", "so", "good"})), (Labels{"bad", "so", "good"}));
  EXPECT_EQ(wanted(trained({"LABEL_0", "LABEL_1"})), (Labels{"good", "bad"}));
  EXPECT_EQ(
      error_of([&] {
        wanted(trained({"LABEL_0", "LABEL_1", "LABEL_2"}));
      }),
      "label \"good\" is unknown; expected one of LABEL_0, LABEL_1, LABEL_2 or a number from 0 to 2, as the head "
      "has them");
  EXPECT_EQ(
      error_of([&] {
        wanted(trained({"bad", "fine"}));
      }),
      "label \"good\" is unknown; expected one of bad, fine or a number from 0 to 1, as the head has them");
  auto known = trained({"bad", "fine"});
  known.may_replace_head = true;
  EXPECT_EQ(wanted(known), (Labels{"good", "bad"}));
  EXPECT_TRUE(tasks::choose_wanted_labels({"good", "bad"}, known).new_head);
}

TEST(Labels, IdsByNameElseByNumber) {
  EXPECT_EQ(tasks::label_ids(table({"good", "0", "bad", "1"}), "label", {"bad", "good"}),
            (std::vector<int64_t>{1, 0, 0, 1}));
  // Names that are numbers win over places.
  EXPECT_EQ(tasks::label_ids(table({"1", "5"}), "label", {"5", "1"}), (std::vector<int64_t>{1, 0}));
}

TEST(Labels, NamesThatAreNumbersAreNoPlaces) {
  EXPECT_EQ(tasks::label_ids(table({"2", "1.0", "1", "2.00"}), "label", {"1", "2"}),
            (std::vector<int64_t>{1, 0, 0, 1}));
  for (const char* const unknown : {"0", "0.0", "3", "x"}) {
    try {
      tasks::label_ids(table({"1", unknown}), "label", {"1", "2"});
      ADD_FAILURE() << unknown;
    } catch (const ValueError& error) {
      EXPECT_EQ(std::string(error.what()), "memory.csv: record 2: label \"" + std::string(unknown) +
                                               "\" in column label is unknown; expected one of 1, 2");
    }
  }
}

TEST(Labels, AreKnownIfEveryRowHasAnId) {
  EXPECT_TRUE(tasks::knows_labels(table({"good", "0", "bad"}), "label", {"bad", "good"}));
  EXPECT_FALSE(tasks::knows_labels(table({"good", "-1"}), "label", {"bad", "good"}));
  EXPECT_FALSE(tasks::knows_labels(table({"1", "0"}), "label", {"1", "2"}));  // numbers, and no places
  EXPECT_THROW(tasks::knows_labels(table({"bad"}), "label", {"bad", "bad"}), ValueError);
}

TEST(Labels, RowsWithOthersAreLeftOut) {
  const tables::TextTable all("memory.csv", {"text", "label"},
                              {{"a", "b", "c", "d", "e"}, {"good", "so", "bad", "good", "so"}});
  const tables::TextTable kept =
      tasks::with_labels(all, "label", {"bad", "good"}, tasks::ExpectedLabels::all);
  const auto texts = kept.column("text");
  EXPECT_EQ(Labels(texts.begin(), texts.end()), (Labels{"a", "c", "d"}));
  EXPECT_EQ(kept.place(2), "memory.csv: record 4");
  EXPECT_EQ(kept.record(2), 3);
  EXPECT_EQ(kept.select({2, 0}).place(0), "memory.csv: record 4");
  EXPECT_EQ(tasks::with_labels(all, "label", {"bad", "great"}).size(), 1u);
  EXPECT_THROW(tasks::with_labels(all, "label", {"bad", "great"}, tasks::ExpectedLabels::all), ValueError);
  EXPECT_THROW(tasks::with_labels(all, "label", {"great"}), ValueError);
  EXPECT_THROW(kept.select({3}), ValueError);
}

TEST(Predictions, OneLineARowWithTheLikeliestLabel) {
  std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-trainer.XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const auto path = std::filesystem::path(pattern) / "predictions.jsonl";
  tasks::write_predictions(path, at::tensor({0.5, -1.25, -3.0, 2.0}).reshape({2, 2}),
                           {"positive", "negative"});
  EXPECT_EQ(read_file(path),
            "{\"index\":0,\"label\":\"positive\",\"logits\":[0.5,-1.25]}\n"
            "{\"index\":1,\"label\":\"negative\",\"logits\":[-3.0,2.0]}\n");
  tasks::write_predictions(path, at::tensor({1.0, 2.0}).reshape({1, 2}), {"positive", "negative"}, {7});
  EXPECT_EQ(read_file(path), "{\"index\":7,\"label\":\"negative\",\"logits\":[1.0,2.0]}\n");
  std::filesystem::remove_all(pattern);
}

TEST(Labels, BlanksAroundNumbersDoNotCount) {
  EXPECT_EQ(tasks::infer_labels(table({" 1", "0 ", "1"}), "label"), (Labels{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(tasks::label_ids(table({" 1", "0\t"}), "label", {"negative", "positive"}),
            (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(tasks::infer_labels(table({" ", "b"}), "label"), (Labels{" ", "b"}));
}

}  // namespace
}  // namespace lockstep
