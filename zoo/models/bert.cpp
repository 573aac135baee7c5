#include "lockstep/zoo/models/bert.h"

#include "lockstep/ops/dropout.h"
#include "lockstep/zoo/models/bert_init.h"
#include "lockstep/zoo/models/bert_layers.h"
#include "lockstep/zoo/models/bert_ops.h"

namespace lockstep::models {

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(BertConfig config)
    : BertForSequenceClassificationImpl(std::move(config), Uninitialized{}) {
  for (auto& item : named_parameters()) initialize_parameter(item.key(), item.value(), config_);
}

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(BertConfig config, Uninitialized)
    : config_(std::move(config)) {
  config_.check();
  const int64_t hidden = config_.hidden_size, labels = static_cast<int64_t>(config_.labels.size());
  bert_ = register_module("bert", std::make_shared<BertModelImpl>(config_));
  classifier_ =
      register_module("classifier", std::make_shared<WeightAndBias>(at::IntArrayRef{labels, hidden}, labels));
}

std::shared_ptr<torch::nn::Module> BertForSequenceClassificationImpl::clone(
    const std::optional<torch::Device>& device) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<BertForSequenceClassificationImpl>(config_, Uninitialized{});
  const auto from = parameters();
  auto to = copy->parameters();
  for (size_t p = 0; p < from.size(); ++p) {
    to[p].set_data(from[p].detach().clone());
    to[p].requires_grad_(from[p].requires_grad());
  }
  if (device) copy->to(*device);
  copy->train(is_training());
  copy->bert_->gradient_checkpointing = bert_->gradient_checkpointing;
  return copy;
}

at::Tensor BertForSequenceClassificationImpl::forward(const BertBatch& batch) {
  const double p = config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
  const at::Tensor pooled = ops::dropout(bert_->forward(batch, config_), is_training() ? p : 0);
  const at::Tensor logits = linear(*classifier_, pooled);
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

void BertForSequenceClassificationImpl::set_dropout(double hidden, double attention) {
  BertConfig changed = config_;
  changed.hidden_dropout_prob = hidden;
  changed.attention_probs_dropout_prob = attention;
  changed.check();
  config_ = std::move(changed);
}

}  // namespace lockstep::models
