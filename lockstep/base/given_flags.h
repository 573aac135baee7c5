// How the user gave this program's flags. Errors that are found after the command line was read name flags so, too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A flag that the user gave.
struct GivenFlag {
  std::string name;    ///< as the program's texts name it: "--batch-size"
  std::string source;  ///< as the user gave it: "--batch_size", "-b", or "environment variable BATCH_SIZE="
  std::string value;   ///< the text that the user gave
};

/// `text` with `by` in place of every `word` that is not a part of a longer word or of a path.
std::string replace_word(std::string text, std::string_view word, std::string_view by);

/// The argument that a flag sets: "batch_size" of "--batch-size". Code that a program may call without flags names it so.
std::string argument_of(std::string_view flag);

/// `text`, which names flags as the program does, with the names that the user gave: "--batch_size 0: expected ...", or
/// "environment variable BATCH_SIZE=0: expected ...". An argument with which it begins becomes its flag.
std::string with_given_names(std::string text, const std::vector<GivenFlag>& flags);

/// From now on with_given_names(text), and with it print_error() and record_error(), name flags as `flags` say. Not
/// thread-safe: called by what reads the command line.
void remember_given_flags(std::vector<GivenFlag> flags);

/// `text` with the names of the remembered flags.
std::string with_given_names(std::string text);

}  // namespace lockstep
