// `lockstep data`: says where the programs are that make data sets for demonstrations, and how to run them.
#include <fmt/format.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct Program {
  const char *command, *about;
};

constexpr Program kPrograms[] = {
    {"fetch.py cifar10", "downloads a public data set and verifies it; --list shows all"},
    {"icons32.py --output-dir .data/icons32", "pictures in 8 classes, from Debian's icon themes"},
    {"lexical_nli.py --output-dir .data/lexical-nli", "pairs of words, from WordNet"},
    {"libreoffice_help.py --languages en-US,it --output-dir help", "sentences in two languages"},
    {"sentiment.py --input .data/vader --output-dir .data/sentiment", "sentences rated by people"},
};

/// share/lockstep/datasets of the installation; in a build, a link to zoo/datasets.
std::filesystem::path datasets_directory() {
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const bool is_installed = !std::filesystem::exists(own / "lockrun");
  const auto directory = own / (is_installed ? LOCKSTEP_DATASETS_FROM_LIBEXEC : "../share/lockstep/datasets");
  std::error_code error;
  auto path = std::filesystem::canonical(directory, error);
  if (error) {
    throw FileError(fmt::format(
        "there is no {}: it belongs to the component zoo, which this build of Lockstep lacks. Install the package "
        "lockstep-zoo, or build with -DLOCKSTEP_ZOO=ON",
        directory.lexically_normal().string()));
  }
  return path;
}

int print_programs() {
  const std::string directory = datasets_directory().string();
  fmt::print(
      "Data sets for demonstrations are made by Python programs in\n  {}\nThey need Python 3.11 or newer and no packages. "
      "Each has --help.\n",
      directory);
  for (const auto& [command, about] : kPrograms)
    fmt::print("\n{}:\n  python3 {}/{}\n", about, directory, command);
  return 0;
}

}  // namespace

void add_data(CommandLine app, Action& action) {
  auto data = app.add_subcommand(
      "data", "Says where the Python programs are that make and download data sets for demonstrations");
  data.callback([&action] { action = print_programs; });
}

}  // namespace lockstep::tools
