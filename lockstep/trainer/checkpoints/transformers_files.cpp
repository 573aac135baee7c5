#include "lockstep/trainer/checkpoints/transformers_files.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/torch_file_writer.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::TorchFileWriter;

constexpr const char* kOptimizer = "the checkpoint's optimizer";
constexpr const char* kScheduler = "the checkpoint's scheduler.json";

struct Source {
  const Checkpoint& checkpoint;
  nlohmann::json arguments;
  StateDict optimizer, scheduler;
  bool decays = false;  ///< where there is one group: is it the one with weight decay?

  std::string argument(const char* name) const {
    const auto found = arguments.find(name);
    return found != arguments.end() && found->is_string() ? found->get<std::string>() : std::string();
  }
  size_t groups() const {
    size_t count = 0;
    while (optimizer.scalars.contains(fmt::format("param_groups.{}.params", count))) ++count;
    return count;
  }
};

/// The state as it was before it was divided among ranks.
StateDict read_optimizer(const Checkpoint& checkpoint) {
  if (checkpoint.has_tensors("optimizer")) return checkpoint.read_state("optimizer");
  StateDict all;
  for (int rank = 0; rank < checkpoint.world_size(); ++rank) {
    StateDict part = checkpoint.read_state(fmt::format("optimizer-rank-{:05}", rank));
    all.tensors.merge(part.tensors);
    all.scalars.merge(part.scalars);
  }
  return all;
}

Source read_source(const Checkpoint& checkpoint) {
  const std::string path = checkpoint.path().string();
  if (!checkpoint.has("trainer_state.json") || !checkpoint.has("training_args.json")) {
    throw ValueError(
        path + " is no checkpoint of the Trainer's: it has no trainer_state.json and training_args.json");
  }
  if (!checkpoint.has("scheduler.json")) {
    throw ValueError(path + " holds the model alone (save_only_model): no training can go on from it");
  }
  Source source{.checkpoint = checkpoint,
                .arguments = parse_json(checkpoint.read_text("training_args.json")),
                .optimizer = read_optimizer(checkpoint),
                .scheduler = {}};
  source.scheduler.scalars = StateDict::scalars_from_json(checkpoint.read_text("scheduler.json"));
  if (const size_t groups = source.groups(); groups == 0 || groups > 2) {
    throw ValueError(
        fmt::format("{}: the optimizer has {} parameter groups; transformers' Trainer has two, with weight "
                    "decay and without, so it would refuse this one",
                    path, groups));
  }
  for (const auto& [name, value] : source.optimizer.scalars) {
    if (name.ends_with(".begin")) {
      throw ValueError(
          path +
          ": its optimizer's state is divided by elements, not by parameters; resume from it and "
          "save it with an optimizer that is not divided");
    }
  }
  const auto tensors = checkpoint.read_tensors("model").tensors;
  source.decays = std::any_of(tensors.begin(), tensors.end(),
                              [](const auto& item) { return takes_weight_decay(item.first); });
  return source;
}

template <class T>
void add(TorchFileWriter& writer, const char* name, const T& value) {
  writer.add(name);
  writer.add(value);
}
void add_none(TorchFileWriter& writer, const char* name) {
  writer.add(name);
  writer.add_none();
}

/// Which of our groups is transformers' group 0, with weight decay, and 1, without; of one that is empty, and that
/// we leave out, the other's options serve.
struct GroupPlace {
  size_t group;
  bool is_empty;
};
std::vector<GroupPlace> group_places(const Source& source) {
  if (source.groups() == 2) return {{0, false}, {1, false}};
  return {{0, !source.decays}, {0, source.decays}};
}

void add_group(const Source& source, GroupPlace place, bool decays, int64_t& parameters,
               TorchFileWriter& writer) {
  const StateDict group = source.optimizer.part(fmt::format("param_groups.{}", place.group));
  writer.begin_dict();
  for (const auto& [name, value] : group.scalars) {
    if (name == "params" || name.starts_with("betas.") || (name == "weight_decay" && place.is_empty))
      continue;
    writer.add(name);
    std::visit(
        [&]<class T>(const T& scalar) {
          if constexpr (std::is_same_v<T, std::string>) {
            writer.add(group.get<double>(kOptimizer, name));  // what JSON has no number for
          } else {
            writer.add(scalar);
          }
        },
        value);
  }
  if (place.is_empty) {
    double decay = 0;
    if (const auto found = source.arguments.find("weight_decay"); decays && found != source.arguments.end()) {
      decay = found->get<double>();
    }
    add(writer, "weight_decay", decay);
  }
  if (group.scalars.contains("betas.0")) {
    writer.add("betas");
    writer.begin_tuple();
    for (const char* beta : {"betas.0", "betas.1"}) writer.add(group.get<double>(kOptimizer, beta));
    writer.end_tuple();
    add(writer, "capturable", false);
  }
  add(writer, "maximize", false);
  add_none(writer, "foreach");
  add(writer, "differentiable", false);
  if (source.argument("optim") == "adamw_torch_fused") {
    add(writer, "fused", true);
  } else {
    add_none(writer, "fused");
  }
  if (source.argument("optim").starts_with("adamw")) add(writer, "decoupled_weight_decay", true);
  if (const std::string base = fmt::format("base_lrs.{}", place.group);
      source.scheduler.scalars.contains(base)) {
    add(writer, "initial_lr", source.scheduler.get<double>(kScheduler, base));
  }
  writer.add("params");
  writer.begin_list();
  const int64_t count = place.is_empty ? 0 : group.get<int64_t>(kOptimizer, "params");
  for (int64_t i = 0; i < count; ++i) writer.add(parameters++);
  writer.end_list();
  writer.end_dict();
}

void add_parameter_state(const StateDict& state, TorchFileWriter& writer) {
  writer.begin_dict();
  for (const auto& [name, tensor] : state.tensors) {
    writer.add(name);
    writer.add(tensor);
  }
  if (state.scalars.contains("step")) {  // PyTorch's optimizers keep it in a tensor
    add(writer, "step", at::scalar_tensor(static_cast<float>(state.get<int64_t>(kOptimizer, "step"))));
  }
  writer.end_dict();
}

void write_optimizer(const Source& source, const fs::path& path) {
  TorchFileWriter writer;
  int64_t parameters = 0;
  writer.begin_dict();
  writer.add("param_groups");
  writer.begin_list();
  bool decays = true;
  for (const GroupPlace place : group_places(source)) {
    add_group(source, place, decays, parameters, writer);
    decays = false;
  }
  writer.end_list();
  writer.add("state");
  writer.begin_dict();
  for (int64_t p = 0; p < parameters; ++p) {
    const StateDict state = source.optimizer.part(fmt::format("state.{}", p));
    if (state.tensors.empty() && state.scalars.empty()) continue;  // it never had a gradient
    writer.add(p);
    add_parameter_state(state, writer);
  }
  writer.end_dict();
  writer.end_dict();
  writer.save(path);
}

void add_rates(const Source& source, const char* name, const std::function<double(size_t group)>& rate,
               TorchFileWriter& writer) {
  writer.add(name);
  writer.begin_list();
  for (const auto& [group, is_empty] : group_places(source)) writer.add(rate(group));
  writer.end_list();
}

/// What load_state_dict() of PyTorch's schedulers needs; the rest is made of the TrainingArguments.
void write_scheduler(const Source& source, const fs::path& path) {
  const bool is_plateau = source.scheduler.scalars.contains("num_bad_epochs");
  TorchFileWriter writer;
  writer.begin_dict();
  const auto last_epoch = source.scheduler.get<int64_t>(kScheduler, "last_epoch");
  add(writer, "last_epoch", last_epoch);
  add_rates(
      source, "_last_lr",
      [&](size_t group) {
        return source.optimizer.get<double>(kOptimizer, fmt::format("param_groups.{}.lr", group));
      },
      writer);
  if (is_plateau) {
    for (const char* name : {"num_bad_epochs", "cooldown_counter"}) {
      add(writer, name, source.scheduler.get<int64_t>(kScheduler, name));
    }
    if (source.scheduler.scalars.contains("best"))
      add(writer, "best", source.scheduler.get<double>(kScheduler, "best"));
  } else {
    add(writer, "_step_count", last_epoch + 1);
    add_rates(
        source, "base_lrs",
        [&](size_t group) {
          return source.scheduler.get<double>(kScheduler, fmt::format("base_lrs.{}", group));
        },
        writer);
    if (const auto type = source.argument("lr_scheduler_type"); type != "step" && type != "multi_step") {
      writer.add("lr_lambdas");  // the others are LambdaLR in Python
      writer.begin_list();
      for (size_t g = 0; g < group_places(source).size(); ++g) writer.add_none();
      writer.end_list();
    }
  }
  writer.end_dict();
  writer.save(path);
}

bool is_for_resuming_ours(const std::string& file) {
  return file == "scheduler.json" || file.starts_with("optimizer") || file.starts_with("training_state.") ||
         file.starts_with("buffers-rank-");
}

/// The model and the texts.
std::vector<std::string> copy_files(const Source& source, const StateDict& weights, const fs::path& output) {
  std::vector<std::string> copied;
  for (const auto& [file, entry] : source.checkpoint.manifest().files) {
    if (is_for_resuming_ours(file) || (!weights.tensors.empty() && file.starts_with("model"))) continue;
    fs::copy_file(source.checkpoint.path() / file, output / file, fs::copy_options::overwrite_existing);
    copied.push_back(file);
  }
  if (!weights.tensors.empty()) {  // in place of the averaged ones
    auto model = source.checkpoint.read_tensors("model");
    for (const auto& [name, tensor] : weights.tensors) {
      if (const auto found = model.tensors.find(name); found != model.tensors.end()) found->second = tensor;
    }
    checkpoint::save_safetensors(output / "model.safetensors", model.tensors, model.metadata);
    copied.emplace_back("model.safetensors");
  }
  return copied;
}

}  // namespace

std::vector<std::string> write_transformers_files(const Checkpoint& checkpoint, const fs::path& output) {
  const Source source = read_source(checkpoint);
  const StateDict weights = checkpoint.read_state("training_state").part("weights");
  std::error_code error;
  fs::create_directories(output, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", output.string(), error.message()));
  const bool is_in_place = fs::equivalent(output, checkpoint.path());
  if (is_in_place && !weights.tensors.empty()) {
    throw ValueError(checkpoint.path().string() +
                     ": its model.safetensors holds averaged weights (ema_decay), not those of the training; "
                     "name another directory for the converted checkpoint, --output DIR");
  }
  std::vector<std::string> written;
  try {
    if (!is_in_place) written = copy_files(source, weights, output);
  } catch (const fs::filesystem_error& failure) {
    throw FileError(fmt::format("cannot copy {} to {}: {}", failure.path1().string(),
                                failure.path2().string(), failure.code().message()));
  }
  write_optimizer(source, output / "optimizer.pt");
  write_scheduler(source, output / "scheduler.pt");
  written.insert(written.end(), {"optimizer.pt", "scheduler.pt"});
  return written;
}

}  // namespace lockstep
