// Our side of bench/translation/decode: greedy search over batches of sentences, timed.
//   translation_decode MODEL_DIR SOURCES BATCH_SIZE MAX_NEW_TOKENS USE_CACHE OUTPUT
// SOURCES: safetensors with source, int64 [sentences, longest]. Writes ids, filled up with -1, row_steps and seconds.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <chrono>

#include "bench/places.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/zoo/models/transformer/generator.h"

namespace {

using namespace lockstep;

struct Settings {
  std::string model_dir{}, sources{}, use_cache{}, output{};
  int64_t batch_size = 0, max_new_tokens = 0;
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    benchmarks::place<Settings>("MODEL_DIR", &Settings::model_dir, "Folder of the model"),
    {.name = "SOURCES",
     .member = &Settings::sources,
     .value = "FILE",
     .words = "safetensors with source, int64 [sentences, longest]",
     .is_required = true,
     .is_place = true},
    benchmarks::count<Settings>("BATCH_SIZE", &Settings::batch_size, "Sentences of a batch"),
    benchmarks::place<Settings>("MAX_NEW_TOKENS", &Settings::max_new_tokens,
                                "Most tokens of a translation; 0: 2 n + 10, of a source of n",
                                FlagCheck::at_least(0)),
    benchmarks::place<Settings>("USE_CACHE", &Settings::use_cache, "Whether keys and values are kept",
                                FlagCheck::one_of("true false")),
    {.name = "OUTPUT",
     .member = &Settings::output,
     .value = "FILE",
     .words = "safetensors with ids, row_steps and seconds",
     .is_required = true,
     .is_place = true},
});

int run(int argc, char** argv) {
  const auto settings = parse_table<Settings>(
      "translation_decode", "Translates batches of sentences by greedy search, timed", kFlags, argc, argv);
  if (!settings) return 0;
  keep_freed_memory();  // as the recipe does
  at::set_num_threads(1);
  auto model = models::load_transformer(settings->model_dir);
  std::vector<std::vector<int64_t>> sources;
  for (const at::Tensor& row :
       checkpoint::load_safetensors(settings->sources).tensors.at("source").unbind(0)) {
    const at::Tensor ids = row.masked_select(row.ne(model->config().pad_token_id));
    sources.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.size(0));
  }
  const auto batch = static_cast<size_t>(settings->batch_size);
  const models::GenerateOptions options{.max_new_tokens = settings->max_new_tokens,
                                        .use_cache = settings->use_cache == "true"};
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
  checkpoint::save_safetensors(settings->output, {{"ids", models::pad_ids(ids, -1)},
                                                  {"row_steps", at::tensor({row_steps}, at::kLong)},
                                                  {"seconds", at::tensor({seconds.count()}, at::kDouble)}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("translation_decode", [&] { return run(argc, argv); });
}
