#include "lockstep/zoo/text/tokenizer_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {
namespace {

constexpr int64_t kMaxId = 16'777'215;  // vocab.txt has a line for every id

}  // namespace

void JsonField::fail(const std::string& what) const {
  throw FileError(fmt::format("{}: {} {}", path_.string(), name_.empty() ? "the file" : name_, what));
}

bool JsonField::has(const char* key) const {
  return json_.is_object() && json_.contains(key) && !json_[key].is_null();
}

JsonField JsonField::operator[](const std::string& key) const {
  if (!json_.is_object() || !json_.contains(key)) fail(fmt::format("has no \"{}\"", key));
  return {path_, json_[key], name_.empty() ? key : fmt::format("{}.{}", name_, key)};
}

JsonField JsonField::operator[](size_t index) const {
  if (index >= size()) fail(fmt::format("has no element {}", index));
  return {path_, json_[index], fmt::format("{}[{}]", name_, index)};
}

size_t JsonField::size() const {
  if (!json_.is_array()) fail("is not a list");
  return json_.size();
}

std::string JsonField::string() const {
  if (!json_.is_string()) fail("is not a string");
  return json_.get<std::string>();
}

bool JsonField::is(const char* text) const {
  return json_.is_string() && json_.get_ref<const std::string&>() == text;
}

bool JsonField::boolean() const {
  if (!json_.is_boolean()) fail("is neither true nor false");
  return json_.get<bool>();
}

std::optional<bool> JsonField::optional_boolean() const {
  return is_null() ? std::nullopt : std::optional(boolean());
}

int32_t JsonField::id() const {
  if (!json_.is_number_integer() || json_.get<int64_t>() < 0 || json_.get<int64_t>() > kMaxId) {
    fail(fmt::format("is not a token's id (0 to {})", kMaxId));
  }
  return json_.get<int32_t>();
}

void JsonField::expect_type(const char* type, const char* tokenizer) const {
  if (!has("type") || !(*this)["type"].is(type)) {
    fail(fmt::format("is not a {}, which {} has", type, tokenizer));
  }
}

nlohmann::json parse_json_file(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  if (find_invalid_utf8(content) != std::string::npos)
    throw FileError(fmt::format("{} is not UTF-8", path.string()));
  size_t error_byte = 0;
  nlohmann::json json = parse_json(content, &error_byte);
  if (json.is_discarded())
    throw FileError(fmt::format("{} is not JSON (byte {})", path.string(), error_byte));
  return json;
}

AddedToken read_added_token(const JsonField& field, int32_t id) {
  AddedToken token;
  token.content = field["content"].string();
  token.id = id;
  const auto flag = [&](const char* key) { return field.has(key) && field[key].boolean(); };
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.normalized = flag("normalized");
  token.special = flag("special");
  if (token.content.empty()) field["content"].fail("is empty");
  if (flag("single_word"))
    field["single_word"].fail("is true, which is not supported; write the token as a word");
  return token;
}

std::vector<std::pair<std::string, int32_t>> read_vocab(const JsonField& vocab) {
  if (!vocab.json().is_object() || vocab.json().empty()) vocab.fail("is not an object of tokens and ids");
  std::vector<std::pair<std::string, int32_t>> tokens;
  std::set<int32_t> ids;
  for (const auto& [token, value] : vocab.json().items()) {
    const JsonField field = vocab[token];
    if (!ids.insert(field.id()).second) field.fail("has the id of another token");
    tokens.emplace_back(token, field.id());
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return tokens;
}

}  // namespace lockstep::text
