#include "tools/data/help_pages.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tools {
namespace {

constexpr std::string_view html_space = " \t\r\n\v\f";

bool is_paragraph(std::string_view name) {
  return name == "p" || (name.size() == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6');
}

struct Tag {
  std::string_view name;  ///< "p", "/p"
  std::string_view attributes;
  size_t begin = 0, end = 0;  ///< of "<...>"
};

// The next tag from `position` on; comments and declarations are tags that nobody asks for.
std::optional<Tag> next_tag(std::string_view html, size_t position) {
  const size_t begin = html.find('<', position);
  if (begin == std::string_view::npos) return std::nullopt;
  const bool comment = html.substr(begin, 4) == "<!--";
  const size_t close = comment ? html.find("-->", begin) : html.find('>', begin);
  if (close == std::string_view::npos) return std::nullopt;
  const size_t end = close + (comment ? 3 : 1);
  const auto inner = html.substr(begin + 1, close - begin - 1);
  const size_t name_end = std::min(inner.find_first_of(" \t\r\n", 1), inner.size());
  return Tag{
      .name = inner.substr(0, name_end), .attributes = inner.substr(name_end), .begin = begin, .end = end};
}

std::string_view id_of(std::string_view attributes) {
  const size_t begin = attributes.find(" id=\"");
  if (begin == std::string_view::npos) return {};
  const auto value = attributes.substr(begin + 5);
  return value.substr(0, value.find('"'));
}

void add_code_point(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    text += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// "&lt;" -> "<"; what is no known entity stays.
bool add_entity(std::string_view name, std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", " "}};
  for (const auto& [word, character] : known) {
    if (word == name) return text += character, true;
  }
  if (name.size() < 2 || name[0] != '#') return false;
  const bool hex = name[1] == 'x' || name[1] == 'X';
  const auto digits = name.substr(hex ? 2 : 1);
  uint32_t code = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (error != std::errc() || end != digits.data() + digits.size() || code == 0 || code > 0x10FFFF ||
      surrogate)
    return false;
  add_code_point(code, text);
  return true;
}

std::string unescaped(std::string_view text) {
  constexpr size_t longest_entity = 10;
  std::string result;
  while (!text.empty()) {
    const size_t ampersand = std::min(text.find('&'), text.size());
    result += text.substr(0, ampersand);
    text.remove_prefix(ampersand);
    if (text.empty()) break;
    const size_t end = text.find(';');
    if (end != std::string_view::npos && end <= longest_entity &&
        add_entity(text.substr(1, end - 1), result)) {
      text.remove_prefix(end + 1);
    } else {
      result += '&';
      text.remove_prefix(1);
    }
  }
  return result;
}

std::string one_line(std::string_view text) {
  constexpr std::string_view no_break_space = "\xC2\xA0";
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool wide = text.substr(i, 2) == no_break_space;
    if (wide || html_space.find(text[i]) != std::string_view::npos) {
      if (!result.empty() && result.back() != ' ') result += ' ';
      if (wide) ++i;
    } else {
      result += text[i];
    }
  }
  if (result.ends_with(' ')) result.pop_back();
  return result;
}

// What stands between a paragraph's tags. Moves `position` behind it.
std::string inner_text(std::string_view html, const Tag& open, size_t& position) {
  std::string text;
  position = open.end;
  while (const auto tag = next_tag(html, position)) {
    text += html.substr(position, tag->begin - position);
    if (is_paragraph(tag->name)) return text;  // never closed: the next one begins
    position = tag->end;
    if (tag->name.substr(0, 1) == "/" && tag->name.substr(1) == open.name) return text;
    if (tag->name == "br" || tag->name == "br/") text += ' ';
    if (tag->name == "script" || tag->name == "style") {
      const auto end = html.find(tag->name == "script" ? "</script" : "</style", position);
      position = std::min(end, html.size());
    }
  }
  position = html.size();
  return text;
}

}  // namespace

std::vector<Paragraph> help_paragraphs(std::string_view html) {
  std::vector<Paragraph> paragraphs;
  std::unordered_set<std::string_view> ids;
  size_t position = 0;
  while (const auto tag = next_tag(html, position)) {
    position = tag->end;
    if (!is_paragraph(tag->name)) continue;
    const auto id = id_of(tag->attributes);
    auto text = one_line(unescaped(inner_text(html, *tag, position)));
    if (id.empty() || text.empty() || !ids.insert(id).second) continue;
    if (tables::valid_utf8_prefix(text) != text.size()) throw ValueError("the page is not UTF-8");
    paragraphs.push_back({std::string(id), std::move(text)});
  }
  return paragraphs;
}

void HelpPairs::add(std::string_view page, const std::vector<Paragraph>& source,
                    const std::vector<Paragraph>& target) {
  ++pages_;
  std::unordered_map<std::string_view, const std::string*> target_of;
  for (const auto& paragraph : target) target_of.emplace(paragraph.id, &paragraph.text);
  auto& pairs = splits_[static_cast<size_t>(split_of(page))];
  for (const auto& paragraph : source) {
    const auto found = target_of.find(paragraph.id);
    if (found == target_of.end()) continue;
    if (*found->second == paragraph.text) {
      ++untranslated_;
    } else if (!seen_.insert(paragraph.text + '\n' + *found->second).second) {
      ++duplicates_;
    } else {
      pairs.emplace_back(paragraph.text, *found->second);
    }
  }
}

}  // namespace lockstep::tools
