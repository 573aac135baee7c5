#include "lockstep/zoo/text/char_table.h"

#include <algorithm>
#include <memory>

#include "lockstep/base/mutex.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {
namespace {

struct Range {
  uint32_t first, last;
};
struct LowerRun {
  uint32_t first, last, stride;
  int32_t delta;
};
struct MarkClass {
  uint32_t code, combining_class;
};
struct Sequence {
  uint32_t code;
  uint32_t output[3];  // 0: no more
};

#include "lockstep/zoo/text/tables/unicode_tables.inc"

constexpr uint32_t kCodePoints = 0x110000;
constexpr Range kHangul{0xAC00, 0xD7A3};

bool contains(std::span<const Range> ranges, char32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](char32_t value, const Range& range) { return value < range.first; });
  return after != ranges.begin() && code <= (after - 1)->last;
}

size_t length(const Sequence& sequence) {
  return static_cast<size_t>(std::find(std::begin(sequence.output), std::end(sequence.output), 0u) -
                             std::begin(sequence.output));
}

std::vector<char32_t> lower(char32_t code) {
  for (const auto& sequence : kLowerSequences) {
    if (sequence.code == code) return {sequence.output, sequence.output + length(sequence)};
  }
  const auto after = std::upper_bound(std::begin(kLower), std::end(kLower), code,
                                      [](char32_t value, const LowerRun& run) { return value < run.first; });
  if (after != std::begin(kLower)) {
    const LowerRun& run = *(after - 1);
    if (code <= run.last && (code - run.first) % run.stride == 0) {
      return {static_cast<char32_t>(static_cast<int32_t>(code) + run.delta)};
    }
  }
  return {code};
}

}  // namespace

CharTable::CharTable(NormalizerOptions options) {
  block_of_.assign(kCodePoints >> kBlockBits, uniform_block(static_cast<uint32_t>(CharKind::word)));
  for (const auto& range : kPunctuation) fill(range.first, range.last, CharKind::punctuation);
  for (const auto& range : kSpace) fill(range.first, range.last, CharKind::space);
  if (options.tokenize_chinese_chars) {
    for (const auto& range : kChinese) fill(range.first, range.last, CharKind::chinese);
  }
  if (options.lowercase) {
    for (const auto& run : kLower) {
      for (uint32_t code = run.first; code <= run.last; code += run.stride) set_output(code, lower(code));
    }
    for (const auto& sequence : kLowerSequences) set_output(sequence.code, lower(sequence.code));
  }
  if (options.strip_accents) {
    fill(kHangul.first, kHangul.last, CharKind::hangul);
    for (const auto& range : kMarks) fill(range.first, range.last, CharKind::drop);
    for (const auto& range : kStarterMarks) fill(range.first, range.last, CharKind::drop_starter);
    for (const auto& mark : kSurvivingMarks) set(mark.code, CharKind::mark, 0);
    for (const auto& sequence : kStripped) {
      std::vector<char32_t> output;
      for (size_t i = 0; i < length(sequence); ++i) {
        const char32_t kept = sequence.output[i];
        const auto lowered = options.lowercase ? lower(kept) : std::vector<char32_t>{kept};
        output.insert(output.end(), lowered.begin(), lowered.end());
      }
      set_output(sequence.code, output);
    }
  }
  // Cleaning comes first for the peer, so here it has the last word.
  if (options.clean_text) {
    for (const auto& range : kRemoved) fill(range.first, range.last, CharKind::drop);
    for (const auto& range : kCleanedSpace) {
      for (uint32_t code = range.first; code <= range.last; ++code) set(code, CharKind::space, ' ');
    }
  }
  for (char32_t code = 1; code < 0x80; ++code) {
    const CharEntry entry = (*this)[code];
    if (entry.kind == CharKind::word && entry.code < 0x80) ascii_word_[code] = static_cast<char>(entry.code);
  }
}

const CharTable& CharTable::get(NormalizerOptions options) {
  static base::Mutex mutex;
  static std::unique_ptr<const CharTable> tables[16] LOCKSTEP_GUARDED_BY(mutex);
  const int index = options.clean_text | options.tokenize_chinese_chars << 1 | options.strip_accents << 2 |
                    options.lowercase << 3;
  const base::LockGuard lock(mutex);
  if (!tables[index]) tables[index].reset(new CharTable(options));
  return *tables[index];
}

uint32_t CharTable::uniform_block(uint32_t packed) {
  for (const uint32_t block : shared_blocks_) {
    if (blocks_[block << kBlockBits] == packed) return block;
  }
  const auto block = static_cast<uint32_t>(blocks_.size() >> kBlockBits);
  blocks_.insert(blocks_.end(), kBlockSize, packed);
  shared_blocks_.push_back(block);
  return block;
}

uint32_t& CharTable::slot(char32_t code) {
  uint32_t& block = block_of_[code >> kBlockBits];
  if (std::find(shared_blocks_.begin(), shared_blocks_.end(), block) != shared_blocks_.end()) {
    const uint32_t packed = blocks_[block << kBlockBits];
    block = static_cast<uint32_t>(blocks_.size() >> kBlockBits);
    blocks_.insert(blocks_.end(), kBlockSize, packed);
  }
  return blocks_[block << kBlockBits | (code & (kBlockSize - 1))];
}

void CharTable::fill(uint32_t first, uint32_t last, CharKind kind) {
  const auto packed = static_cast<uint32_t>(kind);
  for (uint32_t code = first; code <= last;) {
    if (code % kBlockSize == 0 && code + kBlockSize - 1 <= last) {
      block_of_[code >> kBlockBits] = uniform_block(packed);
      code += kBlockSize;
    } else {
      slot(code++) = packed;
    }
  }
}

void CharTable::set(char32_t code, CharKind kind, char32_t becomes) {
  slot(code) = static_cast<uint32_t>(becomes << 8) | static_cast<uint32_t>(kind);
}

void CharTable::set_output(char32_t code, std::span<const char32_t> output) {
  if (output.size() > 1) {
    set(code, CharKind::sequence, static_cast<char32_t>(sequences_.size()));
    sequences_.push_back(static_cast<char32_t>(output.size()));
    sequences_.insert(sequences_.end(), output.begin(), output.end());
    return;
  }
  CharKind kind = CharKind::word;
  if ((*this)[code].kind == CharKind::chinese) {
    kind = CharKind::chinese;
  } else if (contains(kPunctuation, output[0])) {
    kind = CharKind::punctuation;
  } else if (contains(kSpace, output[0])) {
    kind = CharKind::space;
  }
  set(code, kind, output[0]);
}

int mark_class(char32_t code) {
  for (const auto& mark : kSurvivingMarks) {
    if (mark.code == code) return static_cast<int>(mark.combining_class);
  }
  return 0;
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    const char* at = text.data() + start;
    if (!contains(kSpace, next_code_point(at))) break;
    end = start;
  }
  return end;
}

size_t leading_space(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const char* after = at;
    if (!contains(kSpace, next_code_point(after))) break;
    at = after;
  }
  return static_cast<size_t>(at - text.data());
}

}  // namespace lockstep::text
