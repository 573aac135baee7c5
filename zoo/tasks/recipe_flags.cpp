#include "lockstep/zoo/tasks/recipe_flags.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

CommandOption RecipeFlags::add_option(const std::string& name, std::function<void(const std::string&)> take,
                                      const std::string& description, OnResume on_resume) {
  if (on_resume.is_recorded)
    throw ValueError(fmt::format("{} is read by a function: the recipe must record its value", name));
  add_row(name, std::move(on_resume), {});
  return program_.add_option(name, std::move(take), description);
}

void RecipeFlags::add_flag(const std::string& name, bool& value, const std::string& description,
                           OnResume on_resume) {
  add_row(name, std::move(on_resume),
          [&value](const std::string& entry, RunRecord& record) { set_entry(record, entry, value); });
  program_.add_flag(name, value, description);
}

void RecipeFlags::add_row(const std::string& name, OnResume on_resume, Record record) {
  rows_.push_back({.flag = name, .on_resume = std::move(on_resume)});
  records_.push_back(std::move(record));
}

void RecipeFlags::set_entry(RunRecord&, const std::string& entry, const std::filesystem::path&) {
  throw ValueError(fmt::format("{} is a path, which cannot be recorded: folders may move", entry));
}

RunRecord RecipeFlags::record() const {
  RunRecord record;
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].on_resume.is_recorded) records_[row](entry_of(rows_[row].flag), record);
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
