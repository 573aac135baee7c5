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
  /// `keys` are those to find. "a.b" is the key a.b of a line's object, or the key b of the object that is its a.
  explicit JsonScanner(std::vector<std::string> keys);

  /// Empty if `line` is one JSON object by RFC 8259, with no key twice and nothing nested deeper than kMaxJsonDepth;
  /// else what is wrong with it. Never throws for any bytes.
  std::string scan(std::string_view line);
  /// Returns the values of the last line, one for each key to find. Where an object on the way to a key is null, so is the
  /// key's value.
  const std::vector<JsonValue>& values() const { return values_; }
  /// The elements of `list`, the text of an ARRAY that scan() has found. Makes values() those of no line.
  std::vector<JsonValue> find_elements(std::string_view list);
  /// All keys of the last line, in order.
  const std::vector<std::string>& names() const { return names_; }
  /// The keys of the last line that are not to be found: the first one, or empty.
  const std::string& unknown_key() const { return unknown_key_; }

 private:
  void object_of_line();
  void nested_object(const std::string& prefix, int depth);
  void member(const std::string& name, JsonValue* place, int depth);
  bool leads_to_key(const std::string& name) const;
  void spread_null(const std::string& name);
  JsonKind value(int depth);
  void skip_container(int depth, char close);
  std::string_view string();  // between the quotes
  JsonKind number();
  void word(std::string_view expected);
  void space();
  char peek() const;
  void expect(char c, const char* what);
  JsonValue* find_place(const std::string& name);
  const std::string& key(std::string_view raw);

  std::vector<std::string> keys_;
  bool has_dotted_key_ = false;
  std::vector<JsonValue> values_{};
  std::vector<std::string> names_{};
  size_t names_used_ = 0;
  std::string unknown_key_{};
  std::string_view line_{};
  size_t at_ = 0;
};

/// Appends the text of a JSON string, without its quotes, that scan() has found to be valid.
void append_unescaped(std::string_view raw, std::string& text);

}  // namespace lockstep::tables
