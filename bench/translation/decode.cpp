// Our side of bench/translation/decode: greedy search over batches of sentences, timed.
//   translation_decode MODEL_DIR SOURCES BATCH_SIZE MAX_NEW_TOKENS USE_CACHE OUTPUT
// SOURCES: safetensors with source, int64 [sentences, longest]. Writes ids, filled up with -1, row_steps and seconds.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <cstdlib>

#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/zoo/models/transformer/generator.h"

namespace {

using namespace lockstep;

int run(const std::vector<std::string>& words) {
  keep_freed_memory();  // as the recipe does
  at::set_num_threads(1);
  auto model = models::load_transformer(words.at(1));
  std::vector<std::vector<int64_t>> sources;
  for (const at::Tensor& row : checkpoint::load_safetensors(words.at(2)).tensors.at("source").unbind(0)) {
    const at::Tensor ids = row.masked_select(row.ne(model->config().pad_token_id));
    sources.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.size(0));
  }
  const auto batch = static_cast<size_t>(std::atoi(words.at(3).c_str()));
  const models::GenerateOptions options{.max_new_tokens = std::atoi(words.at(4).c_str()),
                                        .use_cache = words.at(5) == "true"};
  models::Generator generator(model);
  const auto take = [&](size_t begin) {
    const auto end = std::min(begin + batch, sources.size());
    return std::vector<std::vector<int64_t>>(sources.begin() + static_cast<ptrdiff_t>(begin),
                                             sources.begin() + static_cast<ptrdiff_t>(end));
  };
  generator.generate(take(0), {.max_new_tokens = 2});  // warms up
  std::vector<std::vector<int64_t>> ids;
  int64_t row_steps = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < sources.size(); i += batch) {
    auto result = generator.generate(take(i), options);
    row_steps += result.row_steps;
    for (auto& sentence : result.sentences) ids.push_back(std::move(sentence.ids));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  checkpoint::save_safetensors(words.at(6), {{"ids", models::pad_ids(ids, -1)},
                                             {"row_steps", at::tensor({row_steps}, at::kLong)},
                                             {"seconds", at::tensor({seconds.count()}, at::kDouble)}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("translation_decode", [&] { return run({argv, argv + argc}); });
}
