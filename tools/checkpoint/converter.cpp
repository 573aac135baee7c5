// lockstep-checkpoint-convert TO FROM OUTPUT KEY PREFIX: the work of `lockstep checkpoint convert`, which has checked the
// arguments. Empty ones are not given.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/trainer/checkpoints/transformers_files.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;

std::map<std::string, at::Tensor> without_prefix(const std::map<std::string, at::Tensor>& tensors,
                                                 const std::string& prefix) {
  std::map<std::string, at::Tensor> renamed;
  size_t changed = 0;
  for (const auto& [name, tensor] : tensors) {
    const bool has_it = name.starts_with(prefix);
    changed += has_it ? 1 : 0;
    const std::string rest = has_it ? name.substr(prefix.size()) : name;
    if (rest.empty() || !renamed.emplace(rest, tensor).second) {
      throw ValueError(fmt::format("without the prefix \"{}\", the tensor {} has {}", prefix, name,
                                   rest.empty() ? "no name" : "the name of another one"));
    }
  }
  if (changed == 0) {
    throw ValueError(fmt::format("--strip-prefix: no tensor's name begins with \"{}\"; the first one is {}",
                                 prefix, tensors.begin()->first));
  }
  return renamed;
}

int to_safetensors(const fs::path& from, const fs::path& output, const std::string& key,
                   const std::string& prefix) {
  auto file = checkpoint::load_torch_file(from, {.key = key});
  if (!prefix.empty()) file.tensors = without_prefix(file.tensors, prefix);
  const auto [tensors, metadata] = checkpoint::tensors_once(file.tensors);
  checkpoint::save_safetensors(output, tensors, metadata);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  fmt::print("{}: {} tensors, {} bytes\n", output.string(), tensors.size(), bytes);
  for (const auto& [name, first] : metadata) {
    if (name != "format") fmt::print("{} is the same tensor as {}: written once\n", name, first);
  }
  if (!file.left_out.empty())
    fmt::print("left out, as they are no tensors: {}\n", fmt::join(file.left_out, ", "));
  return 0;
}

int to_trainer(const fs::path& from, const fs::path& output) {
  auto found =
      fs::exists(from / checkpoint::kManifestName) ? checkpoint::open(from) : checkpoint::latest(from);
  if (!found) throw FileError(fmt::format("{} holds no complete checkpoint", from.string()));
  const fs::path& to = output.empty() ? found->path() : output;
  const auto files = write_transformers_files(*found, to);
  fmt::print("{}: wrote {}\n", to.string(), fmt::join(files, ", "));
  fmt::print("resume in Python: trainer.train(resume_from_checkpoint=\"{}\")\n", to.string());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::skip_library_destructors();
  return lockstep::run_main("lockstep checkpoint convert", [&] {
    if (argc != 6) throw ValueError("lockstep-checkpoint-convert is started by lockstep checkpoint convert");
    return std::string(argv[1]) == "trainer" ? to_trainer(argv[2], argv[3])
                                             : to_safetensors(argv[2], argv[3], argv[4], argv[5]);
  });
}
