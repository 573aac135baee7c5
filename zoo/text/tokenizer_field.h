// Values of a tokenizer's JSON file, with the way to each for errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/zoo/text/added_tokens.h"

namespace lockstep::text {

/// A value inside a file. Borrows the path and the JSON. Whatever is not as expected throws FileError that
/// names the file and the way to the value.
class JsonField {
 public:
  JsonField(const std::filesystem::path& path, const nlohmann::json& json, std::string name = "")
      : path_(path), json_(json), name_(std::move(name)) {}

  [[noreturn]] void fail(const std::string& what) const;
  const nlohmann::json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }
  /// Whether it is an object in which `key` is not null.
  bool has(const char* key) const;
  /// What stands under `key`, which must be there.
  JsonField operator[](const std::string& key) const;
  JsonField operator[](size_t index) const;
  size_t size() const;  ///< of a list
  std::string string() const;
  bool is(const char* text) const;
  bool boolean() const;
  std::optional<bool> optional_boolean() const;
  int32_t id() const;  ///< of a token
  /// It is an object whose "type" is `type`, which `tokenizer` ("BERT's tokenizer") has.
  void expect_type(const char* type, const char* tokenizer) const;

 private:
  const std::filesystem::path& path_;
  const nlohmann::json& json_;
  std::string name_;
};

/// Throws FileError where `path` is missing, not UTF-8 or not JSON.
nlohmann::json parse_json_file(const std::filesystem::path& path);

/// An element of "added_tokens", or of "added_tokens_decoder", whose keys are the ids.
AddedToken read_added_token(const JsonField& field, int32_t id);

/// An object of tokens and ids, by id. No two have the same.
std::vector<std::pair<std::string, int32_t>> read_vocab(const JsonField& vocab);

}  // namespace lockstep::text
