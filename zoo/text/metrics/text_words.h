// How the peers split texts into words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text::text_counts {

/// Python's str.split(): the parts between white space, which are parts of `line`.
std::vector<std::string_view> split_words(std::string_view line);

/// sacrebleu's tokenizer 13a: `line` with spaces between words and around punctuation, several in places.
std::string tokenize_13a(std::string_view line);

}  // namespace lockstep::text::text_counts
