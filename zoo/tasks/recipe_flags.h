// The flags of a recipe. Each says what a resume does if its value is not that of the checkpoint's run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/checkpoint/run_record.h"
#include "lockstep/cli/command_line.h"

namespace lockstep::tasks {

/// What a resume does about a flag whose value is not that of the checkpoint's run.
struct OnResume {
  /// Which value takes effect.
  enum class Effect : uint8_t {
    kept,       ///< the checkpoint's
    new_value,  ///< the new one
    refused     ///< neither: the resume is an error, unless --resume-anyway names `kind`
  };
  Effect effect{};                                              ///< see above
  checkpoint::RecordKind kind = checkpoint::RecordKind::flags;  ///< of a refused flag
  /// Whether RecipeFlags records the flag's value. Otherwise the recipe records what the flag leads to, such as the data.
  bool is_recorded = false;
  std::string_view note{};  ///< for the table; may be empty

  /// The checkpoint's value takes effect.
  static constexpr OnResume keeps(std::string_view note) { return {.effect = Effect::kept, .note = note}; }
  /// The new value takes effect.
  static constexpr OnResume takes_new(std::string_view note = {}) {
    return {.effect = Effect::new_value, .note = note};
  }
  /// Another value is an error; the value is recorded.
  static constexpr OnResume refuses(std::string_view note = {}) {
    return {.effect = Effect::refused, .is_recorded = true, .note = note};
  }
  /// It is an error if the flag changes what the recipe records as `kind`.
  static constexpr OnResume refuses(checkpoint::RecordKind kind, std::string_view note) {
    return {.effect = Effect::refused, .kind = kind, .note = note};
  }
};

/// A row of a recipe's table: a flag that sets a member of `Values`, and what a resume does about it.
template <class Values>
struct RecipeFlag {
  Flag<Values> flag{};   ///< as programs without a resume have it
  OnResume on_resume{};  ///< see there
};

/// A CommandLine whose flags have an OnResume. They are rows of constant tables; what they write into must live until record()
/// has been called. One thread.
///
///     constexpr auto kFlags = std::to_array<RecipeFlag<Data>>({
///         {{.name = "max-seq-length", .member = &Data::length, .preset = kHeldValue, .words = "Longer texts are cut"},
///          OnResume::refuses()}});
///     flags.begin_group("Data");
///     flags.add_table<Data>(kFlags, data);
class RecipeFlags {
 public:
  /// Adds to `program`.
  explicit RecipeFlags(CommandLine program) : program_(program) {}
  RecipeFlags(const RecipeFlags&) = delete;
  RecipeFlags& operator=(const RecipeFlags&) = delete;

  /// CommandLine::begin_group().
  void begin_group(const std::string& title) { program_.begin_group(title); }
  /// CommandLine::add_example().
  void add_example(const std::string& meaning, const std::string& command) {
    program_.add_example(meaning, command);
  }
  /// CommandLine::add_table(). Throws ValueError for a row that is to be recorded and sets a path, because folders may move, or
  /// has a function that reads it: the recipe records what it leads to.
  template <class Values>
  void add_table(std::span<const RecipeFlag<std::type_identity_t<Values>>> table, Values& values) {
    for (const auto& row : table) {
      note(row.flag.name, row.on_resume, flag_target(row.flag, values));
      program_.add_table<Values>(std::span(&row.flag, 1), values);
    }
  }

  /// The values of the flags that are to be recorded, under their names: "max_seq_length". Call it after parsing.
  checkpoint::RunRecord record() const;

  /// A flag and what a resume does about it.
  struct Row {
    std::string flag;    ///< "--max-seq-length"
    OnResume on_resume;  ///< as its table says
  };
  /// In the order in which they were added.
  const std::vector<Row>& rows() const { return rows_; }

 private:
  void note(std::string_view name, const OnResume& on_resume, FlagTarget target);

  CommandLine program_;
  std::vector<Row> rows_{};
  std::vector<FlagTarget> targets_{};  // one a row
};

/// A Markdown table of the rows: the flag, what a resume does, the kind that --resume-anyway takes, the note.
std::string describe_resume(const std::vector<RecipeFlags::Row>& rows);

}  // namespace lockstep::tasks
