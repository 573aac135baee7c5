// The flags of a recipe. Each says what a resume does if its value is not that of the checkpoint's run.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
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
  std::string note{};  ///< for the table; may be empty

  /// The checkpoint's value takes effect.
  static OnResume keeps(std::string note) { return {.effect = Effect::kept, .note = std::move(note)}; }
  /// The new value takes effect.
  static OnResume takes_new(std::string note = {}) {
    return {.effect = Effect::new_value, .note = std::move(note)};
  }
  /// Another value is an error; the value is recorded.
  static OnResume refuses(std::string note = {}) {
    return {.effect = Effect::refused, .is_recorded = true, .note = std::move(note)};
  }
  /// It is an error if the flag changes what the recipe records as `kind`.
  static OnResume refuses(checkpoint::RecordKind kind, std::string note) {
    return {.effect = Effect::refused, .kind = kind, .note = std::move(note)};
  }
};

/// A CommandLine whose flags have an OnResume. Flags are added as there; what they write into must live until record() has
/// been called. One thread.
///
///     flags.begin_group("Data");
///     flags.add_option("--max-seq-length", length, "Longer texts are cut", OnResume::refuses()).with_default();
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
  /// CommandLine::add_option() for a variable that it takes; a path cannot be recorded, because folders may move.
  template <class T>
  requires(!std::invocable<T&, const std::string&>) CommandOption
      add_option(const std::string& name, T& value, const std::string& description, OnResume on_resume) {
    add_row(name, std::move(on_resume), [&value](const std::string& entry, checkpoint::RunRecord& record) {
      set_entry(record, entry, value);
    });
    return program_.add_option(name, value, description);
  }
  /// Adds a flag that a function reads. Throws ValueError if it is to be recorded: the recipe does so.
  CommandOption add_option(const std::string& name, std::function<void(const std::string&)> take,
                           const std::string& description, OnResume on_resume);
  /// CommandLine::add_flag().
  void add_flag(const std::string& name, bool& value, const std::string& description, OnResume on_resume);

  /// The values of the flags that are to be recorded, under their names: "max_seq_length". Call it after parsing.
  checkpoint::RunRecord record() const;

  /// A flag and what a resume does about it.
  struct Row {
    std::string flag;    ///< "--max-seq-length"
    OnResume on_resume;  ///< as it was added
  };
  /// In the order in which they were added.
  const std::vector<Row>& rows() const { return rows_; }

 private:
  using Record = std::function<void(const std::string& entry, checkpoint::RunRecord& record)>;
  void add_row(const std::string& name, OnResume on_resume, Record record);

  static void set_entry(checkpoint::RunRecord& record, const std::string& entry,
                        const std::filesystem::path&);
  template <class T>
  static void set_entry(checkpoint::RunRecord& record, const std::string& entry, const T& value) {
    record.set(entry, checkpoint::RecordKind::flags, value);
  }
  template <class T>
  static void set_entry(checkpoint::RunRecord& record, const std::string& entry,
                        const std::optional<T>& value) {
    if (value)
      set_entry(record, entry, *value);
    else
      record.set_json(entry, checkpoint::RecordKind::flags, "null");
  }

  CommandLine program_;
  std::vector<Row> rows_{};
  std::vector<Record> records_{};  // one a row
};

/// A Markdown table of the rows: the flag, what a resume does, the kind that --resume-anyway takes, the note.
std::string describe_resume(const std::vector<RecipeFlags::Row>& rows);

}  // namespace lockstep::tasks
