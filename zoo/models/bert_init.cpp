#include "lockstep/zoo/models/bert_init.h"

namespace lockstep::models {

void initialize_parameter(const std::string& name, at::Tensor& parameter, const BertConfig& config) {
  const at::NoGradGuard no_grad;
  if (name.ends_with(".bias")) {
    parameter.zero_();
  } else if (name.ends_with(".LayerNorm.weight")) {
    parameter.fill_(1);
  } else {
    parameter.normal_(0, config.initializer_range);
    if (name.ends_with(".word_embeddings.weight") && config.pad_token_id >= 0) {
      parameter.select(0, config.pad_token_id).zero_();
    }
  }
}

}  // namespace lockstep::models
