#include "lockstep/zoo/models/transformer/decoder_state.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/zoo/models/attention.h"
#include "lockstep/zoo/models/transformer/decoder_ops.h"
#include "lockstep/zoo/models/transformer/transformer_layers.h"

namespace lockstep::models {
namespace {

constexpr double kNormEps = 1e-6;

at::Tensor transposed(std::initializer_list<at::Tensor> weights) {
  return at::cat(at::TensorList(weights.begin(), weights.size())).detach().t().contiguous();
}

at::Tensor norm(const DecoderWeights::Norm& weights, const at::Tensor& x) {
  return infer_std_layer_norm(x, weights.alpha, weights.bias, kNormEps);
}

// Rows of [rows, ...] change places so that the last `count` fill the place of `count` others.
void move_last(at::Tensor& tensor, int64_t begin, int64_t rows, int64_t count) {
  if (begin + count < rows) tensor.narrow(0, begin, count).copy_(tensor.narrow(0, rows - count, count));
}

class CachedDecoder : public DecoderState {
 public:
  CachedDecoder(const TransformerImpl& model, const DecoderWeights& weights, const EncodedSource& source,
                int64_t beams)
      : weights_(weights),
        heads_(model.config().num_heads),
        head_size_(model.config().d_model / heads_),
        beams_(beams),
        sentences_(source.layout.batch) {
    const TokenLayout& layout = source.layout;
    if (layout.bias.defined()) source_bias_ = layout.bias.clone();
    caches_.resize(weights.layers.size());
    for (size_t i = 0; i < caches_.size(); ++i) {
      at::Tensor both = at::mm(source.rows, weights.layers[i].cross_key_value);
      if (layout.rows.defined()) both = place_rows(both, layout.rows, layout.batch * layout.length);
      const at::Tensor grid = both.view({layout.batch, layout.length, 2, heads_, head_size_});
      caches_[i].source_keys = grid.select(2, 0).transpose(1, 2).contiguous();
      caches_[i].source_values = grid.select(2, 1).transpose(1, 2).contiguous();
    }
  }

  at::Tensor step(const at::Tensor& ids) override {
    const int64_t rows = sentences_ * beams_;
    if (read_ >= weights_.positions.size(0)) {
      throw ValueError(fmt::format("a sentence of more than {} tokens; the model has no more positions",
                                   weights_.positions.size(0)));
    }
    reserve(rows);
    at::Tensor x = weights_.embedding.index_select(0, ids).add_(weights_.positions[read_]);
    for (size_t i = 0; i < caches_.size(); ++i) {
      const auto& layer = weights_.layers[i];
      auto& cache = caches_[i];
      x.addmm_(self_attention(at::mm(norm(layer.norms[0], x), layer.qkv), cache, rows), layer.self_output);
      x.addmm_(cross_attention(at::mm(norm(layer.norms[1], x), layer.cross_query), cache),
               layer.cross_output);
      at::Tensor inner = at::addmm(layer.in_bias, norm(layer.norms[2], x), layer.in);
      x.addmm_(inner.relu_(), layer.out).add_(layer.out_bias);
    }
    ++read_;
    return at::addmm(weights_.projection_bias, norm(weights_.norm, x), weights_.projection);
  }

  void reorder(const at::Tensor& from) override {
    if (from.equal(at::arange(from.size(0), from.options()))) return;
    for (auto& cache : caches_) {
      for (at::Tensor* part : {&cache.keys, &cache.values}) {
        const at::Tensor used = part->narrow(0, 0, from.size(0)).narrow(2, 0, read_);
        used.copy_(at::index_select(used, 0, from));
      }
    }
  }

  void drop(int64_t place) override {
    for (auto& cache : caches_) {
      move_last(cache.source_keys, place, sentences_, 1);
      move_last(cache.source_values, place, sentences_, 1);
      for (at::Tensor* part : {&cache.keys, &cache.values}) {
        at::Tensor used = part->narrow(2, 0, read_);
        move_last(used, place * beams_, sentences_ * beams_, beams_);
      }
    }
    if (source_bias_.defined()) move_last(source_bias_, place, sentences_, 1);
    --sentences_;
  }

 private:
  struct Cache {
    at::Tensor keys, values;                ///< [rows, heads, room, head_size]
    at::Tensor source_keys, source_values;  ///< [sentences, heads, source length, head_size]
  };

  // Room grows by doubling: most sentences are far shorter than the model allows.
  void reserve(int64_t rows) {
    const int64_t room = caches_[0].keys.defined() ? caches_[0].keys.size(2) : 0;
    if (read_ < room) return;
    const int64_t wanted = std::max<int64_t>(32, 2 * room);
    for (auto& cache : caches_) {
      for (at::Tensor* part : {&cache.keys, &cache.values}) {
        const at::Tensor larger = at::empty({rows, heads_, wanted, head_size_}, weights_.embedding.options());
        if (room > 0) larger.narrow(2, 0, room).copy_(part->narrow(0, 0, rows));
        *part = larger;
      }
    }
  }

  at::Tensor self_attention(const at::Tensor& qkv, Cache& cache, int64_t rows) {
    const at::Tensor split = qkv.view({rows, 3, heads_, head_size_});
    const at::Tensor keys = cache.keys.narrow(0, 0, rows), values = cache.values.narrow(0, 0, rows);
    keys.select(2, read_).copy_(split.select(1, 1));
    values.select(2, read_).copy_(split.select(1, 2));
    return attend(split.select(1, 0), {.keys = keys, .values = values, .count = read_ + 1});
  }

  // The rows of a sentence are queries to the same keys.
  at::Tensor cross_attention(const at::Tensor& q, const Cache& cache) {
    return attend(q.view({q.size(0), heads_, head_size_}),
                  {.keys = cache.source_keys.narrow(0, 0, sentences_),
                   .values = cache.source_values.narrow(0, 0, sentences_),
                   .count = cache.source_keys.size(2),
                   .bias = source_bias_.defined() ? source_bias_.narrow(0, 0, sentences_) : at::Tensor()});
  }

  const DecoderWeights& weights_;
  int64_t heads_, head_size_, beams_, sentences_;
  at::Tensor source_bias_;  ///< [sentences, 1, 1, source length]; undefined: no padding
  std::vector<Cache> caches_;
  int64_t read_ = 0;
};

class UncachedDecoder : public DecoderState {
 public:
  UncachedDecoder(TransformerImpl& model, const at::Tensor& source_ids, int64_t beams)
      : model_(model), source_ids_(source_ids), beams_(beams), sentences_(source_ids.size(0)) {
    encode();
  }

  at::Tensor step(const at::Tensor& ids) override {
    const at::Tensor column = ids.unsqueeze(1);
    prefix_ = prefix_.defined() ? at::cat({prefix_, column}, 1) : column;
    if (changed_) encode();
    const at::Tensor logits = model_.decode(prefix_, source_);
    return logits.view({prefix_.size(0), prefix_.size(1), -1}).select(1, prefix_.size(1) - 1);
  }

  void reorder(const at::Tensor& from) override { prefix_ = prefix_.index_select(0, from); }

  void drop(int64_t place) override {
    move_last(source_ids_, place, sentences_, 1);
    move_last(prefix_, place * beams_, sentences_ * beams_, beams_);
    --sentences_;
    source_ids_ = source_ids_.narrow(0, 0, sentences_);
    prefix_ = prefix_.narrow(0, 0, sentences_ * beams_);
    changed_ = true;
  }

 private:
  void encode() {
    changed_ = false;
    if (sentences_ > 0) source_ = model_.encode(source_ids_.repeat_interleave(beams_, 0));
  }

  TransformerImpl& model_;
  at::Tensor source_ids_, prefix_;
  int64_t beams_, sentences_;
  EncodedSource source_;
  bool changed_ = false;
};

}  // namespace

DecoderWeights::DecoderWeights(const TransformerImpl& model) {
  const at::NoGradGuard no_grad;
  const auto& parts = model.parts();
  const auto norm_of = [](const transformer::LayerNormalization& from) {
    return Norm{.alpha = from.alpha.detach().clone(), .bias = from.bias.detach().clone()};
  };
  for (const auto& from : parts.decoder->layers) {
    const auto& self = *from->self_attention;
    const auto& cross = *from->cross_attention;
    const auto& feed_forward = *from->feed_forward;
    layers.push_back(
        {.qkv = transposed({self.w_q->weight, self.w_k->weight, self.w_v->weight}),
         .self_output = transposed({self.w_o->weight}),
         .cross_query = transposed({cross.w_q->weight}),
         .cross_key_value = transposed({cross.w_k->weight, cross.w_v->weight}),
         .cross_output = transposed({cross.w_o->weight}),
         .in = transposed({feed_forward.linear_1->weight}),
         .in_bias = feed_forward.linear_1->bias.detach().clone(),
         .out = transposed({feed_forward.linear_2->weight}),
         .out_bias = feed_forward.linear_2->bias.detach().clone(),
         .norms = {norm_of(*from->norms[0]), norm_of(*from->norms[1]), norm_of(*from->norms[2])}});
  }
  norm = norm_of(*parts.decoder->norm);
  projection = transposed({parts.projection->weight});
  projection_bias = parts.projection->bias.detach().clone();
  embedding = parts.target_embedding.detach() * std::sqrt(static_cast<double>(model.config().d_model));
  positions = parts.target_positions[0].detach().clone();
}

std::unique_ptr<DecoderState> cached_decoder(const TransformerImpl& model, const DecoderWeights& weights,
                                             const EncodedSource& source, int64_t beams) {
  return std::make_unique<CachedDecoder>(model, weights, source, beams);
}

std::unique_ptr<DecoderState> uncached_decoder(TransformerImpl& model, const at::Tensor& source_ids,
                                               int64_t beams) {
  return std::make_unique<UncachedDecoder>(model, source_ids.clone(), beams);
}

}  // namespace lockstep::models
