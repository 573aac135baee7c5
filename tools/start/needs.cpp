#include "tools/start/needs.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::start {
namespace {

class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path& file) : path_(file), stream_(file, std::ios::binary) {
    header_ = at<Elf64_Ehdr>(0);
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 || header_.e_ident[EI_CLASS] != ELFCLASS64) {
      throw FileError(fmt::format("{} is not a 64-bit ELF program", path_.string()));
    }
    for (int i = 0; i < header_.e_phnum; ++i) {
      segments_.push_back(at<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr)));
    }
  }

  Needs needs() {
    std::vector<Elf64_Dyn> entries;
    for (const auto& segment : segments_) {
      if (segment.p_type != PT_DYNAMIC) continue;
      for (size_t i = 0; i < segment.p_filesz / sizeof(Elf64_Dyn); ++i) {
        entries.push_back(at<Elf64_Dyn>(segment.p_offset + i * sizeof(Elf64_Dyn)));
      }
    }
    uint64_t strings = 0;
    for (const auto& entry : entries) {
      if (entry.d_tag == DT_STRTAB) strings = find_offset(entry.d_un.d_ptr);
    }
    Needs needs;
    for (const auto& entry : entries) {
      if (entry.d_tag == DT_NEEDED) needs.libraries.push_back(text_at(strings + entry.d_un.d_val));
      if (entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH) {
        std::istringstream directories(text_at(strings + entry.d_un.d_val));
        for (std::string one; std::getline(directories, one, ':');) {
          if (!one.empty()) needs.run_path.emplace_back(one);
        }
      }
    }
    return needs;
  }

 private:
  template <typename T>
  T at(uint64_t offset) {
    T value{};
    stream_.seekg(static_cast<std::streamoff>(offset));
    if (!stream_.read(reinterpret_cast<char*>(&value), sizeof value)) {
      throw FileError(fmt::format("cannot read {}", path_.string()));
    }
    return value;
  }

  std::string text_at(uint64_t offset) {
    std::string text;
    stream_.seekg(static_cast<std::streamoff>(offset));
    std::getline(stream_, text, '\0');
    return text;
  }

  uint64_t find_offset(uint64_t address) const {
    for (const auto& segment : segments_) {
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
          address < segment.p_vaddr + segment.p_filesz) {
        return address - segment.p_vaddr + segment.p_offset;
      }
    }
    throw FileError(fmt::format("{} has no table of names", path_.string()));
  }

  std::filesystem::path path_;
  std::ifstream stream_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
};

}  // namespace

Needs read_needs(const std::filesystem::path& program) { return ElfFile(program).needs(); }

}  // namespace lockstep::start
