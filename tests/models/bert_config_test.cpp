#include <gtest/gtest.h>
#include <stdlib.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/models/bert_config.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;

class BertConfigTest : public testing::Test {
 protected:
  BertConfigTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-config-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~BertConfigTest() override { fs::remove_all(directory_); }

  BertConfig read(const std::string& json) {
    write_file_atomically(directory_ / "config.json", json);
    return BertConfig::from_file(directory_ / "config.json");
  }

  void expect_error(const std::string& json, const std::string& word) {
    try {
      read(json);
      FAIL() << json << " was accepted";
    } catch (const FileError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("config.json"), std::string::npos) << message;
      EXPECT_NE(message.find(word), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  fs::path directory_;
};

TEST_F(BertConfigTest, EmptyObjectGivesTheDefaults) {
  const BertConfig config = read("{}");
  EXPECT_EQ(config.hidden_size, 768);
  EXPECT_EQ(config.num_hidden_layers, 12);
  EXPECT_EQ(config.vocab_size, 30522);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_LT(config.classifier_dropout, 0);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
}

TEST_F(BertConfigTest, LabelsComeFromId2labelInTheOrderOfIds) {
  EXPECT_EQ(read(R"({"id2label": {"1": "b", "0": "a", "2": "c"}})").labels,
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(read(R"({"num_labels": 3})").labels.size(), 3u);
  const std::string eleven =
      R"({"id2label": {"0":"0","1":"1","2":"2","3":"3","4":"4","5":"5","6":"6","7":"7","8":"8","9":"9","10":"10"}})";
  EXPECT_EQ(read(eleven).labels[10], "10");
}

TEST_F(BertConfigTest, SavedConfigReadsBackEqual) {
  BertConfig config = BertConfig::small();
  config.labels = {"positive", "negative", "neutral"};
  config.classifier_dropout = 0.25;
  config.pad_token_id = -1;
  config.hidden_act = "gelu_new";
  config.save(directory_ / "config.json");
  const BertConfig again = BertConfig::from_file(directory_ / "config.json");
  EXPECT_EQ(again.labels, config.labels);
  EXPECT_EQ(again.classifier_dropout, 0.25);
  EXPECT_EQ(again.pad_token_id, -1);
  EXPECT_EQ(again.hidden_act, "gelu_new");
  EXPECT_EQ(again.hidden_size, 256);
  EXPECT_EQ(again.num_hidden_layers, 4);
}

TEST_F(BertConfigTest, ErrorsNameFileAndField) {
  expect_error("not json", "JSON");
  expect_error("[]", "JSON");
  expect_error(R"({"hidden_act": "glu"})", "hidden_act");
  expect_error(R"({"hidden_size": "768"})", "hidden_size");
  expect_error(R"({"hidden_size": 7.5})", "hidden_size");
  expect_error(R"({"hidden_size": 100, "num_attention_heads": 12})", "num_attention_heads");
  expect_error(R"({"num_attention_heads": 0})", "num_attention_heads");
  expect_error(R"({"vocab_size": -1})", "vocab_size");
  expect_error(R"({"hidden_dropout_prob": 1.0})", "hidden_dropout_prob");
  expect_error(R"({"layer_norm_eps": 0})", "layer_norm_eps");
  expect_error(R"({"pad_token_id": 40000})", "pad_token_id");
  expect_error(R"({"model_type": "roberta"})", "model_type");
  expect_error(R"({"position_embedding_type": "relative_key"})", "position_embedding_type");
  expect_error(R"({"id2label": {"0": "a", "2": "b"}})", "id2label");
  expect_error(R"({"id2label": ["a"]})", "id2label");
  expect_error(R"({"num_labels": 0})", "num_labels");
}

TEST_F(BertConfigTest, VocabularyMustFitTheEmbeddings) {
  BertConfig config;
  config.vocab_size = 100;
  check_vocab_fits(config, 100, "vocab.txt");
  check_vocab_fits(config, 90, "vocab.txt");
  try {
    check_vocab_fits(config, 101, "some/vocab.txt");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("some/vocab.txt"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::models
