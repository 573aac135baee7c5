// A set of small pictures from Debian's icon themes, for machines that cannot reach the public sets.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/subcommands.h"

namespace lockstep::tools {

/// The packages, in the order in which a picture that several hold is taken.
inline constexpr std::array<const char*, 10> kIconPackages = {
    "adwaita-icon-theme",  "tango-icon-theme", "gnome-icon-theme",  "oxygen-icon-theme",
    "mate-icon-theme",     "lxde-icon-theme",  "faenza-icon-theme", "elementary-xfce-icon-theme",
    "gnome-colors-common", "moka-icon-theme"};

/// The freedesktop icon theme contexts that are classes.
inline constexpr std::array<const char*, 8> kIconClasses = {"actions", "apps",      "categories", "devices",
                                                            "emblems", "mimetypes", "places",     "status"};

/// The class of an icon by the folders of its path, "Tango/32x32/apps"; empty for other sizes and contexts.
std::string icon_class(const std::filesystem::path& folder);

/// Whether icons called `name` (without theme, folder and .png) are for the test: XXH3 (64 bits, no seed) of the name, modulo 5,
/// is 0. So the same motif in another theme is on the same side.
bool is_test_icon(const std::string& name);

/// What add_theme() has taken.
struct IconCounts {
  std::map<std::string, std::array<int64_t, 2>> by_class{};  ///< training, test
  int64_t duplicates = 0;
};

/// Takes the icons of a theme's unpacked package into `target`/{train,test}/CLASS/PACKAGE--NAME.png: 32x32 pixels, on white. Those
/// whose pixels are in `seen` are left out; symbolic links too. Returns how many were taken. Throws FileError.
int64_t add_theme(const std::filesystem::path& unpacked, const std::string& package,
                  const std::filesystem::path& target, std::set<std::string>& seen, IconCounts& counts);

void add_icons32(CommandLine data, Action& action);

}  // namespace lockstep::tools
