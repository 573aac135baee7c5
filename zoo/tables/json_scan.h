// What a line of JSON holds, and whether it is one object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tables {

enum class JsonKind : uint8_t { MISSING, STRING, INTEGER, FLOAT, BOOLEAN, NULL_VALUE, ARRAY, OBJECT };

struct JsonValue {
  JsonKind kind = JsonKind::MISSING;
  std::string_view text{};  ///< as it stands in the line
};

constexpr int kMaxJsonDepth = 100;

/// Checks lines and finds the values of some keys. Valid UTF-8 is not its subject. Not thread-safe.
class JsonScanner {
 public:
  /// `keys` are those to find.
  explicit JsonScanner(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  /// Empty if `line` is one JSON object by RFC 8259, with no key twice and nothing nested deeper than kMaxJsonDepth;
  /// else what is wrong with it. Never throws for any bytes.
  std::string scan(std::string_view line);
  /// Returns the values of the last line, one for each key to find.
  const std::vector<JsonValue>& values() const { return values_; }
  /// All keys of the last line, in order.
  const std::vector<std::string>& names() const { return names_; }
  /// The keys of the last line that are not to be found: the first one, or empty.
  const std::string& unknown_key() const { return unknown_key_; }

 private:
  void object_of_line();
  JsonKind value(int depth);
  void skip_container(int depth, char close);
  std::string_view string();  // between the quotes
  JsonKind number();
  void word(std::string_view expected);
  void space();
  char peek() const;
  void expect(char c, const char* what);
  void key(std::string_view raw, JsonValue*& place);

  std::vector<std::string> keys_;
  std::vector<JsonValue> values_{};
  std::vector<std::string> names_{};
  size_t names_used_ = 0;
  std::string unknown_key_{};
  std::string_view line_{};
  size_t at_ = 0;
};

/// The text of a JSON string without its quotes; lone surrogates are not valid and make it empty.
std::string unescaped(std::string_view raw);

}  // namespace lockstep::tables
