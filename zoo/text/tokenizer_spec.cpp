#include "lockstep/zoo/text/tokenizer_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {

void read_vocab_txt(const std::filesystem::path& path, TokenizerSpec& spec) {
  const std::string content = read_text_file(path);
  if (content.empty()) throw FileError(fmt::format("{} is empty; expected one token a line", path.string()));
  std::unordered_map<std::string_view, int32_t> ids;
  std::string_view rest = content;
  for (int32_t id = 0; !rest.empty(); ++id) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (find_invalid_utf8(line) != std::string_view::npos) {
      throw FileError(fmt::format("{}:{}: the line is not UTF-8", path.string(), id + 1));
    }
    ids.insert_or_assign(line.substr(0, trailing_space(line)), id);
  }
  spec.source = path;
  spec.vocab.assign(ids.begin(), ids.end());
  std::sort(spec.vocab.begin(), spec.vocab.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
}

void add_special_tokens(TokenizerSpec& spec) {
  for (const auto* name :
       {&spec.unk_token, &spec.sep_token, &spec.pad_token, &spec.cls_token, &spec.mask_token}) {
    if (std::any_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                    [&](const AddedToken& token) { return token.content == *name; })) {
      continue;
    }
    const auto found = std::find_if(spec.vocab.begin(), spec.vocab.end(),
                                    [&](const auto& entry) { return entry.first == *name; });
    if (found != spec.vocab.end()) spec.added_tokens.push_back({.content = *name, .id = found->second});
  }
}

}  // namespace lockstep::text
