#include "lockstep/zoo/tasks/sentence_pairs.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/data/split.h"
#include "lockstep/data/token_batches.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tasks {
namespace {

std::vector<std::string> read_lines(const std::filesystem::path& file) {
  const std::string content = read_text_file(file);
  std::vector<std::string> lines;
  std::string_view rest = content;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t bad = tables::valid_utf8_prefix(line);
    if (bad != line.size()) {
      throw FileError(fmt::format("{}:{}: byte {} is not UTF-8; convert the file", file.string(),
                                  lines.size() + 1, bad + 1));
    }
    if (line.find_first_not_of(" \t\r\v\f") == std::string_view::npos) {
      throw FileError(fmt::format("{}:{}: the line is empty; every line needs a sentence", file.string(),
                                  lines.size() + 1));
    }
    lines.emplace_back(line);
  }
  if (lines.empty()) throw FileError(fmt::format("{} is empty; expected one sentence a line", file.string()));
  return lines;
}

std::vector<int64_t> encode_text(const std::string& text, const text::WordLevelTokenizer& tokenizer,
                                 const SpecialTokens& special) {
  auto ids = tokenizer.encode(text);
  for (auto& id : ids) {
    if (id == special.padding || id == special.start || id == special.end) id = special.unknown;
  }
  return ids;
}

at::Tensor padded(const std::vector<const std::vector<int64_t>*>& rows, int64_t before, int64_t after,
                  int64_t padding) {
  size_t longest = 0;
  for (const auto* row : rows) longest = std::max(longest, row->size());
  const int64_t extra = (before >= 0 ? 1 : 0) + (after >= 0 ? 1 : 0);
  at::Tensor ids = at::full({static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest) + extra},
                            padding, at::kLong);
  auto* to = ids.data_ptr<int64_t>();
  for (const auto* row : rows) {
    auto* next = to;
    if (before >= 0) *next++ = before;
    next = std::copy(row->begin(), row->end(), next);
    if (after >= 0) *next = after;
    to += ids.size(1);
  }
  return ids;
}

Batch batch_of(const EncodedPairs& pairs, const std::vector<int64_t>& indices, const SpecialTokens& special,
               int64_t first_sample) {
  std::vector<const std::vector<int64_t>*> sources, targets;
  at::Tensor samples = at::full({static_cast<int64_t>(indices.size())}, first_sample, at::kLong);
  auto* sample = samples.data_ptr<int64_t>();
  for (const int64_t i : indices) {
    sources.push_back(&pairs.sources[static_cast<size_t>(i)]);
    targets.push_back(&pairs.targets[static_cast<size_t>(i)]);
    *sample++ += pairs.rows[static_cast<size_t>(i)];
  }
  constexpr int64_t none = -1;
  return {{"source_ids", padded(sources, none, none, special.padding)},
          {"target_ids", padded(targets, special.start, none, special.padding)},
          {"labels", padded(targets, none, special.end, special.padding)},
          {"sample", samples}};
}

bool is_apostrophe(std::string_view word) { return word == "'" || word == "\xE2\x80\x99"; }

bool is_word(std::string_view word) {
  if (word.empty()) return false;
  const auto first = static_cast<unsigned char>(word[0]);
  return first >= 0x80 ? !is_apostrophe(word) : std::isalnum(first) != 0 || first == '_';
}

}  // namespace

SentencePairs read_sentence_pairs(const std::filesystem::path& source_file,
                                  const std::filesystem::path& target_file) {
  auto sources = read_lines(source_file), targets = read_lines(target_file);
  if (sources.size() != targets.size()) {
    const bool more = sources.size() > targets.size();
    throw FileError(fmt::format(
        "{} has {} lines and {} has {}; line {} of {} has no translation. Line N of one file must "
        "be the translation of line N of the other",
        source_file.string(), sources.size(), target_file.string(), targets.size(),
        std::min(sources.size(), targets.size()) + 1, (more ? source_file : target_file).string()));
  }
  SentencePairs all{.source_file = source_file, .target_file = target_file, .pairs = {}};
  DataFingerprinter fingerprinter({"source", "target"});
  fingerprinter.add_rows(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    fingerprinter.add(0, sources[i]);
    fingerprinter.add(1, targets[i]);
  }
  all.fingerprint = fingerprinter.finish();
  for (size_t i = 0; i < sources.size(); ++i) {
    all.pairs.push_back({.source = std::move(sources[i]),
                         .target = std::move(targets[i]),
                         .line = static_cast<int64_t>(i) + 1});
  }
  return all;
}

SentencePairs split_off(SentencePairs& pairs, double share, uint64_t seed) {
  const auto split = train_test_split(pairs.size(), share, seed);
  SentencePairs rest{.source_file = pairs.source_file, .target_file = pairs.target_file, .pairs = {}},
      off = rest;
  for (const int64_t i : split.train) rest.pairs.push_back(pairs.pairs[static_cast<size_t>(i)]);
  for (const int64_t i : split.test) off.pairs.push_back(pairs.pairs[static_cast<size_t>(i)]);
  rest.fingerprint = select_rows(pairs.fingerprint, split.train);
  off.fingerprint = select_rows(pairs.fingerprint, split.test);
  pairs = std::move(rest);
  return off;
}

SpecialTokens SpecialTokens::of(const text::WordLevelTokenizer& tokenizer,
                                const std::filesystem::path& file) {
  const auto id = [&](const char* token) {
    const auto found = tokenizer.token_to_id(token);
    if (!found) {
      throw FileError(
          fmt::format("{} has no token {}; a translation model needs [UNK], [PAD], [SOS] and [EOS]",
                      file.string(), token));
    }
    return *found;
  };
  return {.unknown = id("[UNK]"), .padding = id("[PAD]"), .start = id("[SOS]"), .end = id("[EOS]")};
}

std::vector<int64_t> encode_source(const std::string& text, const text::WordLevelTokenizer& tokenizer,
                                   const SpecialTokens& special) {
  std::vector<int64_t> ids{special.start};
  const auto words = encode_text(text, tokenizer, special);
  ids.insert(ids.end(), words.begin(), words.end());
  ids.push_back(special.end);
  return ids;
}

EncodedPairs encode_pairs(const SentencePairs& pairs, const text::WordLevelTokenizer& source_tokenizer,
                          const text::WordLevelTokenizer& target_tokenizer, const SpecialTokens& special,
                          const EncodeOptions& options) {
  EncodedPairs encoded;
  const auto too_long = [&](const std::filesystem::path& file, int64_t line, size_t words, int64_t room) {
    if (static_cast<int64_t>(words) <= room) return false;
    const auto what = fmt::format("{}:{}: the sentence has {} words", file.string(), line, words);
    if (options.drop_overlong) {
      if (encoded.dropped == 0) encoded.first_dropped = what;
      return true;
    }
    throw FileError(fmt::format(
        "{}, the model takes {} (seq_len {} less start and end of sentence); raise --seq-len, or leave such pairs "
        "out with --drop-overlong",
        what, room, options.seq_len));
  };
  for (size_t i = 0; i < pairs.pairs.size(); ++i) {
    const auto& pair = pairs.pairs[i];
    auto source = encode_source(pair.source, source_tokenizer, special);
    auto target = encode_text(pair.target, target_tokenizer, special);
    const int64_t room = options.seq_len - 2;
    if (too_long(pairs.source_file, pair.line, source.size() - 2, room) ||
        too_long(pairs.target_file, pair.line, target.size(), room)) {
      ++encoded.dropped;
      continue;
    }
    encoded.sources.push_back(std::move(source));
    encoded.targets.push_back(std::move(target));
    encoded.rows.push_back(static_cast<int64_t>(i));
  }
  if (encoded.rows.empty()) {
    throw ValueError(fmt::format("all {} pairs of {} are longer than seq_len {}", pairs.pairs.size(),
                                 pairs.source_file.string(), options.seq_len));
  }
  return encoded;
}

Dataset translation_dataset(std::shared_ptr<const EncodedPairs> pairs, const SpecialTokens& special,
                            int64_t tokens_per_batch, int64_t first_sample) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < pairs->sources.size(); ++i) {
    lengths.push_back(static_cast<int64_t>(std::max(pairs->sources[i].size(), pairs->targets[i].size() + 1)));
  }
  if (tokens_per_batch <= 0) {
    Dataset dataset{
        .size = static_cast<int64_t>(lengths.size()), .lengths = std::move(lengths), .collate = {}};
    dataset.collate = [=](const std::vector<int64_t>& indices) {
      return batch_of(*pairs, indices, special, first_sample);
    };
    return dataset;
  }
  auto batches =
      std::make_shared<const std::vector<std::vector<int64_t>>>(batches_by_tokens(lengths, tokens_per_batch));
  Dataset dataset{.size = static_cast<int64_t>(batches->size()), .lengths = {}, .collate = {}};
  dataset.collate = [=](const std::vector<int64_t>& indices) {
    std::vector<int64_t> all;
    for (const int64_t i : indices) {
      const auto& batch = (*batches)[static_cast<size_t>(i)];
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return batch_of(*pairs, all, special, first_sample);
  };
  return dataset;
}

std::string detokenize(const std::string& words) {
  constexpr std::string_view closing = ",.;:!?)]}%", opening = "([{";
  std::istringstream stream(words);
  std::string text, word, before;
  bool glue = true, quoted = false;  // glue: no space before the next word
  while (stream >> word) {
    const bool quote = word == "\"";
    const bool apostrophe = is_apostrophe(word) && is_word(before);
    const bool closes = closing.find(word[0]) != std::string_view::npos || word == "()" ||
                        word == "\xC2\xBB" || word == "\xE2\x80\xA6";
    const bool slash = word == "/" && is_word(before);
    if (!glue && !closes && !apostrophe && !slash && !(quote && quoted)) text += ' ';
    text += word;
    glue = (opening.find(word.back()) != std::string_view::npos) || word == "\xC2\xAB" || apostrophe ||
           slash || (quote && !quoted);
    if (quote) quoted = !quoted;
    before = word;
  }
  return text;
}

}  // namespace lockstep::tasks
