// What somebody meant who misspelled a word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The word that `text` was probably meant to be: a few edits away from `text`, or `text` is its beginning or
/// a whole part of it ("batch-size" of "per-device-train-batch-size"). Empty when none is near. Leading
/// dashes and what follows a '=' do not count, and '_' is '-'.
std::string nearest_word(std::string_view text, const std::vector<std::string>& words);

/// "a, b or c".
std::string one_of(const std::vector<std::string>& words);

}  // namespace lockstep
