// The other programs of this build or installation.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tools {

/// Where lockrun and the programs that `lockstep` starts lie: beside it in a build; installed, it lies in
/// libexec and they in bin.
std::filesystem::path programs_directory();

/// The path of one of these programs. Throws FileError if it is not there, with the command that makes it.
std::filesystem::path program_path(const std::string& name);

/// The program of the component zoo. Throws Error, naming the component, if this build or installation lacks it.
std::filesystem::path zoo_program(const std::string& name);

/// Replaces this process by that program.
[[noreturn]] void become_zoo_program(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace lockstep::tools
