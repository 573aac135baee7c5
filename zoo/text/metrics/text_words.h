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

/// sacrebleu's tokenizer intl: likewise by Unicode's categories, so that punctuation between two digits stays.
std::string tokenize_intl(std::string_view line);

/// The characters that are not white space: parts of `line`, in order. They are the words of sacrebleu's tokenizer char.
std::vector<std::string_view> split_characters(std::string_view line);

/// The words of chrF++: those between white space, of which a punctuation mark of ASCII at the end, otherwise at the
/// start, is a word of its own. They are parts of `line`.
std::vector<std::string_view> split_off_punctuation(std::string_view line);

}  // namespace lockstep::text::text_counts
