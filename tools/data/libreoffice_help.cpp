#include "tools/data/libreoffice_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tools/data/help_pages.h"
#include "tools/data/run_program.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<Split, const char*> split_names[] = {
    {Split::train, "train"}, {Split::validation, "validation"}, {Split::test, "test"}};

std::string package_of(std::string language) {
  std::transform(language.begin(), language.end(), language.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return "libreoffice-help-" + language;
}

void check(const LibreOfficeHelpArguments& arguments) {
  const auto& languages = arguments.languages;
  if (languages.size() != 2 || languages[0] == languages[1]) {
    throw ValueError(
        fmt::format("--languages is {}; expected two languages with a comma between, such as en-US,it",
                    fmt::join(languages, ",")));
  }
  for (const auto& language : languages) {
    const bool plain =
        !language.empty() && std::all_of(language.begin(), language.end(),
                                         [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
    if (!plain || language[0] == '-')
      throw ValueError(fmt::format("'{}' is no language; expected a name such as en-US or it", language));
  }
}

/// Unpacks the packages of both languages below `directory`. Returns their names and versions.
std::string fetch(const std::vector<std::string>& languages, const fs::path& directory) {
  const fs::path downloads = directory / "packages";
  fs::create_directory(downloads);
  for (const auto& language : languages) {
    run_program({"apt-get", "download", "-q", package_of(language)}, downloads,
                fmt::format("is there a package {}? `apt-get update` renews the list, `apt-cache search "
                            "libreoffice-help-` shows the languages; --input takes an unpacked package",
                            package_of(language)));
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(downloads)) {
    run_program({"dpkg-deb", "-x", entry.path().string(), directory.string()}, downloads,
                "is there space in the directory for temporary files?");
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, "\n"));
}

fs::path pages_of(const fs::path& root, const std::string& language) {
  for (const auto& base : {root / "usr/share/libreoffice/help", root}) {
    if (fs::is_directory(base / language / "text")) return base / language / "text";
  }
  throw FileError(
      fmt::format("{} has no {}/text; expected an unpacked package {}, or /usr/share/libreoffice/help",
                  root.string(), language, package_of(language)));
}

HelpPairs read_pages(const fs::path& root, const std::vector<std::string>& languages) {
  const fs::path source = pages_of(root, languages[0]), target = pages_of(root, languages[1]);
  std::vector<fs::path> pages;
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    const auto page = entry.path().lexically_relative(source);
    if (page.extension() == ".html" && fs::is_regular_file(target / page)) pages.push_back(page);
  }
  std::sort(pages.begin(), pages.end());
  HelpPairs pairs;
  const auto paragraphs = [](const fs::path& path) {
    try {
      return help_paragraphs(read_text_file(path));
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}", path.string(), error.what()));
    }
  };
  for (const auto& page : pages) {
    end_if_stopped();
    pairs.add(page.string(), paragraphs(source / page), paragraphs(target / page));
  }
  return pairs;
}

}  // namespace

int make_libreoffice_help(const LibreOfficeHelpArguments& arguments) {
  check(arguments);
  const TemporaryDirectory temporary;
  const bool fetches = arguments.input.empty();
  const std::string packages =
      fetches ? fetch(arguments.languages, temporary.path()) : arguments.input.string();
  const auto pairs = read_pages(fetches ? temporary.path() : arguments.input, arguments.languages);
  for (const auto& [split, name] : split_names) {
    if (pairs.split(split).empty())
      throw ValueError(
          fmt::format("too few pages in both languages ({}): nothing is left for {}", pairs.pages(), name));
  }
  std::error_code error;
  fs::create_directories(arguments.output_dir, error);
  if (error)
    throw FileError(fmt::format("cannot create {}: {}", arguments.output_dir.string(), error.message()));
  size_t total = 0;
  for (const auto& [split, name] : split_names) {
    std::string source, target;
    for (const auto& [from, to] : pairs.split(split)) {
      source += from + '\n';
      target += to + '\n';
    }
    write_file_atomically(arguments.output_dir / fmt::format("{}.{}", name, arguments.languages[0]), source);
    write_file_atomically(arguments.output_dir / fmt::format("{}.{}", name, arguments.languages[1]), target);
    fmt::print("{:12}{:>8} pairs\n", name, pairs.split(split).size());
    total += pairs.split(split).size();
  }
  write_file_atomically(
      arguments.output_dir / "SOURCE.txt",
      fmt::format(
          "Paragraphs of LibreOffice's help in {} and {}, joined by their ids. From:\n{}\n\n"
          "Copyright LibreOffice contributors and others. Licence: Mozilla Public License 2.0; parts Apache License "
          "2.0.\nThe packages' own statement is in /usr/share/doc/<package>/copyright.\n",
          arguments.languages[0], arguments.languages[1], packages));
  fmt::print(
      "{:12}{:>8} pairs of {} pages\nleft out: {} duplicates, {} without a translation\nlicence: MPL-2.0, see {}\n",
      "all", total, pairs.pages(), pairs.duplicates(), pairs.untranslated(),
      (arguments.output_dir / "SOURCE.txt").string());
  return 0;
}

}  // namespace lockstep::tools
