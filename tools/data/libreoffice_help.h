// `lockstep data libreoffice-help`: LibreOffice's help in two languages as pairs of sentences.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tools {

struct LibreOfficeHelpArguments {
  std::vector<std::string> languages;  ///< two, as LibreOffice names them: en-US, it
  std::filesystem::path output_dir;
  std::filesystem::path
      input;  ///< with usr/share/libreoffice/help/<language>/text inside; empty: fetched by apt-get
};

/// Writes train, validation and test, each as two files with the same number of lines whose names end in the languages,
/// and SOURCE.txt: where they come from, and the licence. Returns the exit code. Throws ValueError and FileError; then
/// nothing is written.
int make_libreoffice_help(const LibreOfficeHelpArguments& arguments);

}  // namespace lockstep::tools
