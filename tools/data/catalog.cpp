#include "tools/data/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::tools {
namespace {

using nlohmann::json;

CatalogFile read_file_entry(const json& entry, const json& file) {
  CatalogFile read;
  read.url = file.at("url").get<std::string>();
  if (read.url.find("://") == std::string::npos) read.url = entry.value("address", std::string()) + read.url;
  read.name = read.url.substr(read.url.rfind('/') + 1);
  read.name.resize(std::min(read.name.find_first_of("?#"), read.name.size()));
  if (read.url.find("://") == std::string::npos || read.name.empty() || read.name.starts_with('.')) {
    throw ValueError(fmt::format("'{}' is not the address of a file", read.url));
  }
  read.bytes = file.value("bytes", int64_t{0});
  read.sha256 = file.value("sha256", std::string());
  read.source = file.value("source", entry.value("source", std::string()));
  return read;
}

// Names of data sets and parts become names of folders, which are removed when they have been unpacked.
void check_folder_name(const std::string& name) {
  const bool is_plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
                        name.find('\0') == std::string::npos && name != "downloads";
  if (!is_plain) {
    throw ValueError(fmt::format(
        "'{}' cannot be the name of a data set or part; expected a folder's name, without '/' and no dot first, "
        "other than downloads",
        name));
  }
}

CatalogEntry read_entry(const std::string& name, const json& entry, std::string part) {
  check_folder_name(name);
  CatalogEntry read{.name = name, .about = entry.value("about", std::string())};
  const json* files = nullptr;
  if (entry.contains("parts")) {
    const auto& parts = entry.at("parts");
    for (const auto& [key, value] : parts.items()) read.parts.push_back(key);
    if (part.empty()) part = entry.value("default_part", std::string());
    if (!parts.contains(part)) {
      throw ValueError(
          fmt::format("{} has no part '{}'; there are {}", name, part, fmt::join(read.parts, ", ")));
    }
    check_folder_name(part);
    files = &parts.at(part);
  } else {
    if (!part.empty()) throw ValueError(fmt::format("{} has no parts; leave out --part", name));
    files = &entry.at("files");
  }
  read.part = part;
  for (const auto& file : *files) read.files.push_back(read_file_entry(entry, file));
  return read;
}

void check_verified(const CatalogEntry& entry) {
  if (entry.files.empty()) throw ValueError(fmt::format("{} has no files", entry.name));
  for (size_t i = 0; i < entry.files.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (entry.files[i].name != entry.files[j].name) continue;
      throw ValueError(
          fmt::format("{}: {} and {} would have the same name, {}; make them entries of their own",
                      entry.name, entry.files[j].url, entry.files[i].url, entry.files[i].name));
    }
  }
  for (const auto& file : entry.files) {
    std::vector<std::string> missing;
    const bool is_sum = file.sha256.size() == 64 &&
                        std::all_of(file.sha256.begin(), file.sha256.end(),
                                    [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (!is_sum) missing.emplace_back("its SHA-256");
    if (file.bytes <= 0) missing.emplace_back("its size");
    if (file.source.empty()) missing.emplace_back("the public file that names them");
    if (!missing.empty()) {
      throw ValueError(fmt::format("{} is unverified and is not fetched: for {} the catalog lacks {}",
                                   entry.name, file.url, fmt::join(missing, ", ")));
    }
  }
}

template <typename Use>
auto with_catalog(std::string_view text, const std::string& origin, Use use) {
  try {
    const auto catalog = json::parse(text);
    if (!catalog.is_object()) throw ValueError("expected an object of data sets by name");
    return use(catalog);
  } catch (const json::exception& error) {
    throw ValueError(fmt::format("{} is not a catalog: {}", origin, error.what()));
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{}{}{}", origin, origin.empty() ? "" : ": ", error.what()));
  }
}

}  // namespace

std::vector<CatalogEntry> read_catalog(std::string_view text, const std::string& origin) {
  return with_catalog(text, origin, [](const json& catalog) {
    std::vector<CatalogEntry> entries;
    for (const auto& [name, entry] : catalog.items()) entries.push_back(read_entry(name, entry, ""));
    return entries;
  });
}

CatalogEntry find_entry(std::string_view text, const std::string& origin, const std::string& name,
                        const std::string& part) {
  return with_catalog(text, origin, [&](const json& catalog) {
    if (!catalog.contains(name)) {
      std::vector<std::string> names;
      for (const auto& [key, value] : catalog.items()) names.push_back(key);
      throw ValueError(fmt::format("there is no data set '{}'; there are {}", name, fmt::join(names, ", ")));
    }
    auto entry = read_entry(name, catalog.at(name), part);
    check_verified(entry);
    return entry;
  });
}

}  // namespace lockstep::tools
