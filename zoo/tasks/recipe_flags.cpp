#include "lockstep/zoo/tasks/recipe_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"

namespace lockstep::tasks {
namespace {

using checkpoint::RunRecord;

/// "--max-seq-length" is the entry max_seq_length.
std::string entry_of(const std::string& flag) {
  std::string name = flag.substr(flag.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const char* describe_effect(OnResume::Effect effect) {
  switch (effect) {
    case OnResume::Effect::kept:
      return "kept";
    case OnResume::Effect::new_value:
      return "new";
    case OnResume::Effect::refused:
      return "refused";
  }
  return "";
}

template <class T>
void set_entry(RunRecord& record, const std::string& entry, const T& value) {
  record.set(entry, checkpoint::RecordKind::flags, value);
}

template <class T>
void set_entry(RunRecord& record, const std::string& entry, const std::optional<T>& value) {
  if (value)
    set_entry(record, entry, *value);
  else
    record.set_json(entry, checkpoint::RecordKind::flags, "null");
}

void set_entry(RunRecord& record, const std::string& entry, const std::vector<int>& values) {
  record.set_json(entry, checkpoint::RecordKind::flags, fmt::format("[{}]", fmt::join(values, ", ")));
}

template <class Target>
constexpr bool kIsRecordable = std::is_pointer_v<Target> && !std::is_same_v<Target, std::filesystem::path*>;

bool is_recordable(const FlagTarget& target) {
  return std::visit([](const auto& to) { return kIsRecordable<std::decay_t<decltype(to)>>; }, target);
}

}  // namespace

void RecipeFlags::note(std::string_view name, const OnResume& on_resume, FlagTarget target) {
  if (on_resume.is_recorded && !is_recordable(target)) {
    throw ValueError(fmt::format(
        "--{} cannot be recorded: it is a path, which may move, or text that a function reads; record what it leads to",
        name));
  }
  rows_.push_back({.flag = fmt::format("--{}", name), .on_resume = on_resume});
  targets_.push_back(std::move(target));
}

RunRecord RecipeFlags::record() const {
  RunRecord record;
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].on_resume.is_recorded) continue;
    const auto set = [&](const auto& to) {
      if constexpr (kIsRecordable<std::decay_t<decltype(to)>>)
        set_entry(record, entry_of(rows_[row].flag), *to);
    };
    std::visit(set, targets_[row]);
  }
  return record;
}

std::string describe_resume(const std::vector<RecipeFlags::Row>& rows) {
  std::string table = "| flag | a resume | `--resume-anyway` | note |\n|---|---|---|---|\n";
  for (const auto& [flag, on_resume] : rows) {
    const bool is_refused = on_resume.effect == OnResume::Effect::refused;
    table += fmt::format("| `{}` | {} | {} | {} |\n", flag, describe_effect(on_resume.effect),
                         is_refused ? fmt::format("`{}`", checkpoint::name_of(on_resume.kind)) : "",
                         on_resume.note);
  }
  return table;
}

}  // namespace lockstep::tasks
