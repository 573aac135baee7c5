// Texts to values of flags, with one wording of what was expected. No parser is behind it: lockrun uses it too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cli/flag.h"

namespace lockstep {

/// A flag with its value as the user gave them: "--seed x", "environment variable PET_ROLE=x". `source`: the flag
/// as it was typed, or "environment variable NAME=".
std::string said_value(std::string_view source, std::string_view text);

/// What a word says that turns something on or off: true, yes, t, y, 1, or false, no, f, n, 0, in any case (transformers'
/// string_to_bool). Nothing for any other word.
std::optional<bool> truth_in(std::string_view text);

/// Sets `target` from `texts`, of which it is the last one unless the target is a list; empty is a switch that was
/// given alone. Throws ValueError "--seed x: expected a whole number".
void set_flag(const FlagTarget& target, std::string_view source, const std::vector<std::string>& texts,
              const FlagCheck& check);

/// What the target holds, as --help shows it; empty for what has no value.
std::string describe_value(const FlagTarget& target);

/// Whether the flag stands alone, without a value.
bool is_switch(const FlagTarget& target);

/// Whether it takes several words.
bool is_list(const FlagTarget& target);

/// What --help calls a value of this type: N, X, FILE, LIST or TEXT.
std::string_view value_name(const FlagTarget& target);

/// Words with spaces between, one by one.
std::vector<std::string> split_words(std::string_view words);

}  // namespace lockstep
