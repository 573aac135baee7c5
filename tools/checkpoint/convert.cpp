// `lockstep checkpoint convert`: the command line; lockstep-checkpoint-convert does the work.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "lockstep/base/error.h"
#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct ConvertArguments {
  std::filesystem::path from, output;
  std::string to, key, prefix;
};

constexpr auto kConvertFlags = std::to_array<Flag<ConvertArguments>>({
    {.name = "from",
     .member = &ConvertArguments::from,
     .words =
         "A file of torch.save(), of which nothing is executed; with --to trainer a checkpoint, or a folder of which the newest is taken",
     .is_required = true,
     .is_place = true},
    {.name = "to",
     .member = &ConvertArguments::to,
     .preset = "safetensors",
     .check = FlagCheck::one_of("safetensors trainer"),
     .words = "What to make"},
    {.name = "output",
     .member = &ConvertArguments::output,
     .words = "The file to write; with --to trainer the directory, by default the checkpoint itself"},
    {.name = "key",
     .member = &ConvertArguments::key,
     .value = "NAME",
     .words = "The entry of the file that holds the tensors: model_state_dict, for example"},
    {.name = "strip-prefix",
     .member = &ConvertArguments::prefix,
     .words = "Taken from the names that begin with it: module. for example"},
});

int convert(const ConvertArguments& arguments) {
  const bool is_directory = std::filesystem::is_directory(arguments.from);
  const bool to_trainer = arguments.to == "trainer";
  const std::string from = arguments.from.string();
  if (to_trainer && !is_directory && std::filesystem::exists(arguments.from)) {
    throw ValueError(fmt::format("{} is a file; --to trainer converts a checkpoint directory", from));
  }
  if (!to_trainer && is_directory) {
    throw ValueError(
        fmt::format("{} is a directory: give --to trainer to convert a checkpoint for transformers' Trainer, "
                    "or name a file of torch.save()",
                    from));
  }
  if (!to_trainer && arguments.output.empty()) {
    throw ValueError("--output is missing: name the safetensors file to write, --output model.safetensors");
  }
  if (to_trainer && !(arguments.key.empty() && arguments.prefix.empty())) {
    throw ValueError("--key and --strip-prefix are for files of torch.save(), not for --to trainer");
  }
  const std::string program = program_path("lockstep-checkpoint-convert").string();
  ::execl(program.c_str(), program.c_str(), arguments.to.c_str(), from.c_str(), arguments.output.c_str(),
          arguments.key.c_str(), arguments.prefix.c_str(), nullptr);
  throw Error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
}

}  // namespace

void add_checkpoint_convert(CommandLine checkpoint, Action& action) {
  auto arguments = std::make_shared<ConvertArguments>();
  auto command = checkpoint.add_subcommand(
      "convert",
      "Makes a safetensors file of PyTorch's .pt, .pth or .bin, or a checkpoint that transformers' Trainer resumes");
  command.add_table<ConvertArguments>(kConvertFlags, *arguments);
  command.add_example(
      "Weights that DistributedDataParallel has saved",
      "lockstep checkpoint convert resnet.pth --strip-prefix module. --output model.safetensors");
  command.add_example("Go on in Python", "lockstep checkpoint convert run/checkpoint-500 --to trainer");
  command.callback([arguments, &action] { action = [arguments] { return convert(*arguments); }; });
}

}  // namespace lockstep::tools
