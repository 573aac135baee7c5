#include "lockstep/zoo/models/bert.h"

#include <c10/core/GradMode.h>

#include "lockstep/ops/dropout.h"
#include "lockstep/zoo/models/bert_init.h"
#include "lockstep/zoo/models/bert_layers.h"
#include "lockstep/zoo/models/bert_ops.h"

namespace lockstep::models {

namespace {

at::Tensor as_logits(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

/// Start and end.
BertConfig with_two_outputs(BertConfig config) {
  config.labels = {"LABEL_0", "LABEL_1"};
  return config;
}

}  // namespace

BertWithHeadImpl::BertWithHeadImpl(BertConfig config, const Parts& parts) : config_(std::move(config)) {
  config_.check();
  config_.architecture = parts.architecture;
  const int64_t hidden = config_.hidden_size, labels = static_cast<int64_t>(config_.labels.size());
  bert_ = register_module("bert", std::make_shared<BertModelImpl>(config_, parts.has_pooler));
  head_ =
      register_module(parts.head, std::make_shared<WeightAndBias>(at::IntArrayRef{labels, hidden}, labels));
}

BertWithHeadImpl::~BertWithHeadImpl() = default;

void BertWithHeadImpl::initialize() {
  for (auto& item : named_parameters()) initialize_parameter(item.key(), item.value(), config_);
}

void BertWithHeadImpl::copy_from(const BertWithHeadImpl& from, const std::optional<torch::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto sources = from.parameters();
  auto to = parameters();
  for (size_t p = 0; p < sources.size(); ++p) {
    to[p].set_data(sources[p].detach().clone());
    to[p].requires_grad_(sources[p].requires_grad());
  }
  if (device) this->to(*device);
  train(from.is_training());
  bert_->gradient_checkpointing = from.bert_->gradient_checkpointing;
}

at::Tensor BertWithHeadImpl::of_positions(const BertBatch& batch, double dropout, bool with_padding) {
  const auto tokens = bert_->encode(batch, config_, with_padding);
  const auto& layout = tokens.layout;
  at::Tensor x = linear(*head_, ops::dropout(tokens.rows, is_training() ? dropout : 0));
  if (layout.rows.defined()) x = place_rows(x, layout.rows, layout.batch * layout.length);
  return as_logits(x).view({layout.batch, layout.length, -1});
}

double BertWithHeadImpl::classifier_dropout() const {
  return config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
}

void BertWithHeadImpl::set_dropout(double hidden, double attention) {
  BertConfig changed = config_;
  changed.hidden_dropout_prob = hidden;
  changed.attention_probs_dropout_prob = attention;
  changed.check();
  config_ = std::move(changed);
}

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(BertConfig config)
    : BertForSequenceClassificationImpl(std::move(config), Uninitialized{}) {
  initialize();
}
BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(BertConfig config, Uninitialized)
    : BertWithHeadImpl(std::move(config), kParts) {}
std::shared_ptr<torch::nn::Module> BertForSequenceClassificationImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<BertForSequenceClassificationImpl>(config_, Uninitialized{});
  copy->copy_from(*this, device);
  return copy;
}
at::Tensor BertForSequenceClassificationImpl::forward(const BertBatch& batch) {
  const at::Tensor pooled = bert_->forward(batch, config_);
  return as_logits(linear(*head_, ops::dropout(pooled, is_training() ? classifier_dropout() : 0)));
}

BertForTokenClassificationImpl::BertForTokenClassificationImpl(BertConfig config)
    : BertForTokenClassificationImpl(std::move(config), Uninitialized{}) {
  initialize();
}
BertForTokenClassificationImpl::BertForTokenClassificationImpl(BertConfig config, Uninitialized)
    : BertWithHeadImpl(std::move(config), kParts) {}
std::shared_ptr<torch::nn::Module> BertForTokenClassificationImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<BertForTokenClassificationImpl>(config_, Uninitialized{});
  copy->copy_from(*this, device);
  return copy;
}
at::Tensor BertForTokenClassificationImpl::forward(const BertBatch& batch) {
  return of_positions(batch, classifier_dropout(), /*with_padding=*/false);
}

BertForQuestionAnsweringImpl::BertForQuestionAnsweringImpl(BertConfig config)
    : BertForQuestionAnsweringImpl(std::move(config), Uninitialized{}) {
  initialize();
}
BertForQuestionAnsweringImpl::BertForQuestionAnsweringImpl(BertConfig config, Uninitialized)
    : BertWithHeadImpl(with_two_outputs(std::move(config)), kParts) {}
std::shared_ptr<torch::nn::Module> BertForQuestionAnsweringImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<BertForQuestionAnsweringImpl>(config_, Uninitialized{});
  copy->copy_from(*this, device);
  return copy;
}
at::Tensor BertForQuestionAnsweringImpl::forward(const BertBatch& batch) {
  return of_positions(batch, /*dropout=*/0, /*with_padding=*/true);
}

}  // namespace lockstep::models
