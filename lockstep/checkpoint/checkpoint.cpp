#include "lockstep/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string tensors_file(const std::string& stem) { return fmt::format("{}.safetensors", stem); }
std::string index_file(const std::string& stem) { return fmt::format("{}.safetensors.index.json", stem); }

}  // namespace

bool Checkpoint::has_tensors(const std::string& stem) const {
  return has(tensors_file(stem)) || has(index_file(stem));
}

std::string Checkpoint::read_text(const std::string& file) const {
  if (!has(file)) throw FileError(fmt::format("{} has no file {}", path_.string(), file));
  return read_file(path_ / file);
}

std::vector<fs::path> Checkpoint::files_of(const std::string& stem) const {
  if (has(tensors_file(stem))) return {path_ / tensors_file(stem)};
  if (!has(index_file(stem)))
    throw FileError(fmt::format("{} has no {}", path_.string(), tensors_file(stem)));
  const nlohmann::json index = parse_json(read_text(index_file(stem)));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FileError(fmt::format("{} has no weight_map", (path_ / index_file(stem)).string()));
  }
  std::set<fs::path> parts;
  for (const auto& [name, part] : index["weight_map"].items()) {
    const std::string file = part.is_string() ? part.get<std::string>() : "";
    if (!has(file)) {
      throw FileError(fmt::format("{}: {} is in {:?}, which is no file of the checkpoint",
                                  (path_ / index_file(stem)).string(), name, file));
    }
    parts.insert(path_ / file);
  }
  return {parts.begin(), parts.end()};
}

Checkpoint::Tensors Checkpoint::read_tensors(const std::string& stem) const {
  Tensors all;
  for (const auto& file : files_of(stem)) {
    const SafetensorsReader reader(file);
    all.tensors.merge(reader.map());
    all.metadata.insert(reader.metadata().begin(), reader.metadata().end());
  }
  return all;
}

LoadResult Checkpoint::load_module(const std::string& stem, torch::nn::Module& module,
                                   LoadOptions options) const {
  return lockstep::load_module(module, files_of(stem), options);
}

StateDict Checkpoint::read_state(const std::string& stem) const {
  Tensors all = read_tensors(stem);
  const auto scalars = all.metadata.find("scalars");
  if (scalars == all.metadata.end()) {
    throw FileError(fmt::format("{} holds no state: its metadata have no \"scalars\"",
                                (path_ / tensors_file(stem)).string()));
  }
  return {std::move(all.tensors), StateDict::scalars_from_json(scalars->second)};
}

Checkpoint open(const fs::path& path, OpenOptions options) {
  Manifest manifest = read_manifest(path);
  if (options.verify) verify_files(path, manifest);
  return {path, std::move(manifest)};
}

std::optional<Checkpoint> latest(const fs::path& folder, OnRefused on_refused) {
  if (!on_refused) {
    on_refused = [](const fs::path& path, const std::string& reason) {
      log::warning(fmt::format("checkpoint: {} is not used: {}", path.string(), reason));
    };
  }
  const auto found = find_latest(folder, on_refused);
  if (!found) return std::nullopt;
  return open(found->path, {.verify = false});
}

}  // namespace lockstep::checkpoint
