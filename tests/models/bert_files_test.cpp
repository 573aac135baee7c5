#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/zoo/models/bert.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;

class BertFilesTest : public testing::Test {
 protected:
  BertFilesTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-bert-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    config_.vocab_size = 20;
    config_.hidden_size = 8;
    config_.num_hidden_layers = 1;
    config_.num_attention_heads = 2;
    config_.intermediate_size = 16;
    config_.max_position_embeddings = 10;
    config_.labels = {"bad", "good"};
    BertForSequenceClassification model(config_);
    save_bert_classifier(model, directory_);
    tensors_ = checkpoint::load_safetensors(file()).tensors;
  }
  ~BertFilesTest() override { fs::remove_all(directory_); }

  fs::path file() const { return directory_ / "model.safetensors"; }
  void write() { checkpoint::save_safetensors(file(), tensors_); }

  void expect_error(const std::vector<std::string>& words, std::vector<std::string> labels = {}) {
    try {
      load_bert_classifier(directory_, std::move(labels));
      FAIL() << "was loaded";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      for (const auto& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }

  // What `body` logs.
  template <typename Body>
  static std::string logged(Body body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }

  fs::path directory_;
  BertConfig config_;
  std::map<std::string, at::Tensor> tensors_;
};

TEST_F(BertFilesTest, MissingTensorIsNamed) {
  tensors_.erase("bert.encoder.layer.0.output.dense.weight");
  write();
  expect_error({"model.safetensors", "bert.encoder.layer.0.output.dense.weight", "[8, 16]", "missing"});
}

TEST_F(BertFilesTest, WrongShapeNamesTensorAndBothShapes) {
  tensors_["bert.pooler.dense.weight"] = at::ones({8, 9});
  write();
  expect_error({"model.safetensors", "bert.pooler.dense.weight", "[8, 9]", "[8, 8]"});
}

TEST_F(BertFilesTest, WrongDtypeIsNamed) {
  tensors_["bert.pooler.dense.weight"] = at::ones({8, 8}, at::kLong);
  write();
  expect_error({"bert.pooler.dense.weight", "I64"});
}

TEST_F(BertFilesTest, OneParameterUnderTwoNames) {
  tensors_["pooler.dense.weight"] = tensors_["bert.pooler.dense.weight"];
  write();
  expect_error({"pooler.dense.weight", "bert.pooler.dense.weight"});
}

TEST_F(BertFilesTest, MissingFilesAreNamed) {
  fs::remove(file());
  expect_error({"model.safetensors"});
  write_file_atomically(directory_ / "pytorch_model.bin", "x");
  expect_error({"pytorch_model.bin", "save_pretrained"});
  fs::remove(directory_ / "config.json");
  expect_error({"config.json"});
  fs::remove_all(directory_);
  expect_error({directory_.string(), "directory"});
}

TEST_F(BertFilesTest, TruncatedFileIsNamed) {
  const std::string whole = read_file(file());
  write_file_atomically(file(), whole.substr(0, whole.size() / 2));
  expect_error({"model.safetensors", "truncated"});
}

TEST_F(BertFilesTest, MissingHeadsAreInitializedAndReportedOnce) {
  for (const char* name : {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight"}) {
    tensors_.erase(name);
  }
  write();
  const std::string log = logged([&] {
    const auto model = load_bert_classifier(directory_);
    EXPECT_GT(model->named_parameters()["classifier.weight"].abs().max().item<double>(), 0);
    EXPECT_EQ(model->named_parameters()["bert.pooler.dense.bias"].abs().max().item<double>(), 0);
  });
  for (const char* word : {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight"}) {
    EXPECT_NE(log.find(word), std::string::npos) << log;
  }
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(BertFilesTest, UnusedTensorsAreReported) {
  tensors_["bert.extra"] = at::ones({2});
  tensors_["cls.predictions.bias"] = at::ones({2});
  tensors_["bert.embeddings.position_ids"] = at::ones({2}, at::kLong);
  write();
  const std::string log = logged([&] { load_bert_classifier(directory_); });
  EXPECT_NE(log.find("bert.extra"), std::string::npos) << log;
  EXPECT_EQ(log.find("cls."), std::string::npos) << log;
  EXPECT_EQ(log.find("position_ids"), std::string::npos) << log;
}

TEST_F(BertFilesTest, OtherNumberOfLabelsIsRefusedOrMakesANewHead) {
  expect_error({"model.safetensors", "classifier.weight has shape [2, 8]",
                "the 3 labels (a, b, c) need [3, 8]", "--ignore-mismatched-sizes"},
               {"a", "b", "c"});
  const std::string log = logged([&] {
    const auto model = load_bert_classifier(directory_, {"a", "b", "c"}, {.ignore_mismatched_sizes = true});
    EXPECT_EQ(model->config().labels.size(), 3u);
    EXPECT_EQ(model->named_parameters()["classifier.weight"].size(0), 3);
  });
  EXPECT_NE(log.find("classifier.weight has shape [2, 8], the 3 labels (a, b, c) need [3, 8]"),
            std::string::npos)
      << log;
  EXPECT_EQ(log.find("lacks"), std::string::npos) << log;
  // What is not the head must fit: config.json is wrong.
  tensors_["bert.pooler.dense.weight"] = at::ones({8, 9});
  write();
  EXPECT_THROW(load_bert_classifier(directory_, {"a", "b", "c"}, {.ignore_mismatched_sizes = true}),
               FileError);
}

TEST_F(BertFilesTest, AHeadOfOtherLabelsIsMadeAnew) {
  logged([&] {
    const auto model = load_bert_classifier(directory_, {"good", "bad"}, {.new_head = true});
    EXPECT_EQ(model->config().labels, (std::vector<std::string>{"good", "bad"}));
    EXPECT_FALSE(at::equal(model->named_parameters()["classifier.weight"], tensors_["classifier.weight"]));
    EXPECT_TRUE(at::equal(model->named_parameters()["bert.pooler.dense.weight"],
                          tensors_["bert.pooler.dense.weight"]));
  });
  const auto model = load_bert_classifier(directory_, {"bad", "good"}, {.ignore_mismatched_sizes = true});
  EXPECT_TRUE(at::equal(model->named_parameters()["classifier.weight"], tensors_["classifier.weight"]));
}

TEST_F(BertFilesTest, OnlyModelsOfOneLabelForEachTextAreLoaded) {
  const auto save = [&](const std::string& problem_type, std::vector<std::string> labels) {
    BertConfig config = config_;
    config.problem_type = problem_type;
    config.labels = std::move(labels);
    tensors_["classifier.weight"] = at::ones({static_cast<int64_t>(config.labels.size()), 8});
    tensors_["classifier.bias"] = at::ones({static_cast<int64_t>(config.labels.size())});
    write();
    config.save(directory_ / "config.json");
  };
  save("single_label_classification", {"bad", "good"});
  EXPECT_EQ(load_bert_classifier(directory_)->config().problem_type, "single_label_classification");
  for (const char* const other : {"multi_label_classification", "regression"}) {
    save(other, {"bad", "good"});
    expect_error({"config.json", other, "single_label_classification", "--ignore-mismatched-sizes"});
    logged([&] {
      const auto model = load_bert_classifier(directory_, {"bad", "good"}, {.ignore_mismatched_sizes = true});
      EXPECT_EQ(model->config().problem_type, "");
      EXPECT_FALSE(at::equal(model->named_parameters()["classifier.weight"], at::ones({2, 8})));
    });
  }
  save("", {"score"});
  expect_error({"config.json", "one label and no problem_type, which means regression"});
  expect_error({"one label"}, {"bad", "good"});
  tensors_.erase("classifier.weight");  // an encoder has no head to be wrong
  tensors_.erase("classifier.bias");
  write();
  logged([&] { EXPECT_EQ(load_bert_classifier(directory_, {"bad", "good"})->config().labels.size(), 2u); });
  write_file_atomically(directory_ / "config.json", R"({"problem_type": "ranking"})");
  expect_error({"config.json", "problem_type", "ranking", "multi_label_classification"});
}

TEST_F(BertFilesTest, LabelsInAnotherOrderAreRefused) {
  expect_error({"good,bad", "bad,good"}, {"good", "bad"});
  const auto model = load_bert_classifier(directory_, {"no", "yes"});
  EXPECT_TRUE(at::equal(model->named_parameters()["classifier.weight"], tensors_["classifier.weight"]));
}

TEST_F(BertFilesTest, HalfPrecisionFilesAreWidened) {
  for (auto& [name, tensor] : tensors_) tensor = tensor.to(at::kHalf);
  write();
  const auto model = load_bert_classifier(directory_);
  const at::Tensor weight = model->named_parameters()["classifier.weight"];
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(weight, tensors_["classifier.weight"].to(at::kFloat)));
}

}  // namespace
}  // namespace lockstep::models
