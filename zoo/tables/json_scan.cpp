#include "lockstep/zoo/tables/json_scan.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

namespace lockstep::tables {
namespace {

struct NotJson {
  std::string what;
};

constexpr size_t kFewKeys = 32;

[[noreturn]] void twice(std::string_view key) {
  throw NotJson{fmt::format("the key '{}' stands twice", key)};
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of a string that need no look.
const std::array<bool, 256>& ordinary_in_string() {
  static const auto table = [] {
    std::array<bool, 256> ordinary;
    for (size_t c = 0; c < 256; ++c) ordinary[c] = c >= 0x20 && c != '"' && c != '\\';
    return ordinary;
  }();
  return table;
}

// The four hexadecimal digits at `at`; -1 if they are not four.
int code_unit(std::string_view text, size_t at) {
  if (at + 4 > text.size()) return -1;
  int unit = 0;
  for (size_t i = at; i < at + 4; ++i) {
    const char c = text[i];
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

}  // namespace

void append_unescaped(std::string_view raw, std::string& text) {
  constexpr std::string_view kLetters = "bfnrt", kMeanings = "\b\f\n\r\t";
  for (size_t at = 0; at < raw.size();) {
    const size_t escape = std::min(raw.find('\\', at), raw.size());
    text.append(raw, at, escape - at);
    at = escape + 2;
    if (escape >= raw.size()) break;
    const char letter = raw[escape + 1];
    if (letter != 'u') {
      const size_t place = kLetters.find(letter);
      text += place == std::string_view::npos ? letter : kMeanings[place];
      continue;
    }
    int32_t code_point = code_unit(raw, at);
    at += 4;
    if (code_point >= 0xD800 && code_point < 0xDC00) {  // the first of a pair
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (code_unit(raw, at + 2) - 0xDC00);
      at += 6;
    }
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(code_point, bytes);
    text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
}

JsonScanner::JsonScanner(std::vector<std::string> keys)
    : keys_(std::move(keys)), has_dotted_key_(std::any_of(keys_.begin(), keys_.end(), [](const auto& key) {
        return key.find('.') != std::string::npos;
      })) {}

std::string JsonScanner::scan(std::string_view line) {
  line_ = line;
  at_ = 0;
  values_.assign(keys_.size(), {});
  names_used_ = 0;
  unknown_key_.clear();
  try {
    object_of_line();
  } catch (const NotJson& error) {
    names_.resize(names_used_);
    return error.what;
  }
  names_.resize(names_used_);
  return {};
}

void JsonScanner::object_of_line() {
  space();
  if (peek() != '{') {
    throw NotJson{peek() == '['
                      ? "the line begins with '['; expected an object a line (for a file that is one "
                        "list: jq -c '.[]' FILE)"
                      : "not a JSON object; expected one object a line"};
  }
  ++at_;
  space();
  if (peek() == '}') {
    ++at_;
  } else {
    while (true) {
      if (peek() != '"') expect('"', "a key in quotes");
      const std::string& name = key(string());
      JsonValue* const place = find_place(name);
      if (!place && unknown_key_.empty() && !leads_to_key(name)) unknown_key_ = name;
      member(name, place, 1);
      if (peek() == '}') {
        ++at_;
        break;
      }
      expect(',', "',' or '}'");
      space();
    }
  }
  if (names_used_ > kFewKeys) {
    std::vector<std::string_view> sorted(names_.begin(),
                                         names_.begin() + static_cast<std::ptrdiff_t>(names_used_));
    std::sort(sorted.begin(), sorted.end());
    const auto same = std::adjacent_find(sorted.begin(), sorted.end());
    if (same != sorted.end()) twice(*same);
  }
  space();
  if (at_ < line_.size()) {
    throw NotJson{peek() == '{' ? "two objects on one line; expected one"
                                : fmt::format("something follows the object, at character {}", at_ + 1)};
  }
}

// The colon behind a key and its value.
void JsonScanner::member(const std::string& name, JsonValue* place, int depth) {
  space();
  expect(':', "':' behind the key");
  space();
  const size_t begin = at_;
  JsonKind kind = JsonKind::OBJECT;
  if (peek() == '{' && leads_to_key(name)) {
    nested_object(name + ".", depth + 1);
  } else {
    kind = value(depth);
    if (kind == JsonKind::NULL_VALUE) spread_null(name);
  }
  if (place) {
    if (place->kind != JsonKind::MISSING) twice(name);
    *place = {kind, line_.substr(begin, at_ - begin)};
  }
  space();
}

bool JsonScanner::leads_to_key(const std::string& name) const {
  if (!has_dotted_key_) return false;
  return std::any_of(keys_.begin(), keys_.end(), [&](const std::string& key) {
    return key.size() > name.size() && key[name.size()] == '.' && key.starts_with(name);
  });
}

void JsonScanner::spread_null(const std::string& name) {
  if (!has_dotted_key_) return;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i].size() > name.size() && keys_[i][name.size()] == '.' && keys_[i].starts_with(name))
      values_[i].kind = JsonKind::NULL_VALUE;
  }
}

// An object in which there may be keys to find, called by `prefix` and their names.
void JsonScanner::nested_object(const std::string& prefix, int depth) {
  if (depth > kMaxJsonDepth) throw NotJson{fmt::format("nested more than {} deep", kMaxJsonDepth)};
  ++at_;
  space();
  if (peek() == '}') {
    ++at_;
    return;
  }
  while (true) {
    if (peek() != '"') expect('"', "a key in quotes");
    std::string name = prefix;
    append_unescaped(string(), name);
    member(name, find_place(name), depth);
    if (peek() == '}') {
      ++at_;
      return;
    }
    expect(',', "',' or '}'");
    space();
  }
}

std::vector<JsonValue> JsonScanner::find_elements(std::string_view list) {
  line_ = list;
  at_ = 1;
  std::vector<JsonValue> elements;
  for (space(); peek() != ']'; space()) {
    if (peek() == ',') ++at_;
    space();
    const size_t begin = at_;
    const JsonKind kind = value(1);
    elements.push_back({kind, line_.substr(begin, at_ - begin)});
  }
  return elements;
}

JsonValue* JsonScanner::find_place(const std::string& name) {
  const auto found = std::find(keys_.begin(), keys_.end(), name);
  return found == keys_.end() ? nullptr : &values_[static_cast<size_t>(found - keys_.begin())];
}

const std::string& JsonScanner::key(std::string_view raw) {
  if (names_used_ == names_.size()) names_.emplace_back();
  std::string& name = names_[names_used_];
  name.clear();
  append_unescaped(raw, name);
  // When there are many keys, all are compared at once, behind the object.
  const auto end = names_.begin() + static_cast<std::ptrdiff_t>(names_used_);
  if (names_used_ < kFewKeys && std::find(names_.begin(), end, name) != end) twice(name);
  ++names_used_;
  return name;
}

JsonKind JsonScanner::value(int depth) {
  switch (peek()) {
    case '"':
      string();
      return JsonKind::STRING;
    case '{':
      skip_container(depth + 1, '}');
      return JsonKind::OBJECT;
    case '[':
      skip_container(depth + 1, ']');
      return JsonKind::ARRAY;
    case 't':
      word("true");
      return JsonKind::BOOLEAN;
    case 'f':
      word("false");
      return JsonKind::BOOLEAN;
    case 'n':
      word("null");
      return JsonKind::NULL_VALUE;
    default:
      return number();
  }
}

void JsonScanner::skip_container(int depth, char close) {
  if (depth > kMaxJsonDepth) throw NotJson{fmt::format("nested more than {} deep", kMaxJsonDepth)};
  ++at_;
  space();
  if (peek() == close) {
    ++at_;
    return;
  }
  while (true) {
    if (close == '}') {
      if (peek() != '"') expect('"', "a key in quotes");
      string();
      space();
      expect(':', "':' behind the key");
      space();
    }
    value(depth);
    space();
    if (peek() == close) {
      ++at_;
      return;
    }
    expect(',', close == '}' ? "',' or '}'" : "',' or ']'");
    space();
  }
}

std::string_view JsonScanner::string() {
  const auto& ordinary = ordinary_in_string();
  const size_t begin = ++at_;
  // Most texts go to the next quote, with nothing to look at in between.
  if (const size_t quote = line_.find('"', begin); quote != std::string_view::npos) {
    const auto text = line_.substr(begin, quote - begin);
    unsigned special = 0;
    for (const char c : text)
      special |= static_cast<unsigned>((static_cast<unsigned char>(c) < 0x20) | (c == '\\'));
    if (special == 0) {
      at_ = quote + 1;
      return text;
    }
  }
  while (true) {
    while (at_ < line_.size() && ordinary[static_cast<unsigned char>(line_[at_])]) ++at_;
    if (at_ == line_.size()) throw NotJson{"the line ends within a text; expected one object a line"};
    const char c = line_[at_];
    if (c == '"') return line_.substr(begin, at_++ - begin);
    if (c != '\\') {
      throw NotJson{fmt::format("a control character (0x{:02X}) at character {}; write it as \\u{:04x}",
                                static_cast<unsigned char>(c), at_ + 1, static_cast<unsigned char>(c))};
    }
    const char escaped = at_ + 1 < line_.size() ? line_[at_ + 1] : '\0';
    if (escaped == 'u') {
      const int unit = code_unit(line_, at_ + 2);
      const bool is_high = unit >= 0xD800 && unit < 0xDC00;
      const bool is_low = unit >= 0xDC00 && unit < 0xE000;
      size_t length = 6;
      bool good = unit >= 0 && !is_low;
      if (is_high) {
        const bool follows = at_ + 8 <= line_.size() && line_.substr(at_ + 6, 2) == "\\u";
        const int low = follows ? code_unit(line_, at_ + 8) : -1;
        good = low >= 0xDC00 && low < 0xE000;
        length = 12;
      }
      if (!good) {
        throw NotJson{fmt::format("'{}' at character {} is no character", line_.substr(at_, 6), at_ + 1)};
      }
      at_ += length;
    } else if (escaped != '\0' && std::string_view("\"\\/bfnrt").find(escaped) != std::string_view::npos) {
      at_ += 2;
    } else {
      throw NotJson{fmt::format("a '\\' at character {} that JSON does not know", at_ + 1)};
    }
  }
}

JsonKind JsonScanner::number() {
  const size_t begin = at_;
  const auto digits = [&] {
    if (!is_digit(peek())) {
      throw NotJson{begin == at_ ? fmt::format("expected a value at character {}", at_ + 1)
                                 : fmt::format("not a number, at character {}", begin + 1)};
    }
    while (is_digit(peek())) ++at_;
  };
  JsonKind kind = JsonKind::INTEGER;
  if (peek() == '-') ++at_;
  const bool zero = peek() == '0';
  if (zero) {
    ++at_;
    if (is_digit(peek())) throw NotJson{fmt::format("not a number, at character {}", begin + 1)};
  } else {
    digits();
  }
  if (peek() == '.') {
    kind = JsonKind::FLOAT;
    ++at_;
    digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    kind = JsonKind::FLOAT;
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    digits();
  }
  return kind;
}

void JsonScanner::word(std::string_view expected) {
  if (line_.substr(at_, expected.size()) != expected) {
    throw NotJson{fmt::format("expected a value at character {}", at_ + 1)};
  }
  at_ += expected.size();
}

void JsonScanner::space() {
  while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
}

char JsonScanner::peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }

void JsonScanner::expect(char c, const char* what) {
  if (at_ < line_.size() && line_[at_] == c) {
    ++at_;
    return;
  }
  if (at_ >= line_.size())
    throw NotJson{"the object does not end on its line; expected one object a line (jq -c . FILE)"};
  throw NotJson{fmt::format("expected {} at character {}", what, at_ + 1)};
}

}  // namespace lockstep::tables
