// The rows of training_arguments.inc as values, for errors, flags and the page of documentation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A field of TrainingArguments.
struct ArgumentRow {
  const char* name;
  std::string flag;         ///< its name as a flag, without dashes before it: "save-steps"
  const char* group;        ///< heading in --help
  const char* preset_text;  ///< the default in words; nullptr: as it is
  std::string expected;     ///< what is allowed; empty: all of its type
  std::string choices;      ///< the words that are allowed, with spaces between; empty: any
  const char* word;         ///< what --help calls the value; empty: by type
  const char* help;
};

/// The choices of a row's `expected`, which have '|' between; none for any other text.
std::vector<std::string> choices_in(std::string_view expected);
/// A row's `expected` in words: "no, steps or epoch".
std::string describe_expected(std::string_view expected);

/// A field of transformers' that is not supported.
struct RefusedArgument {
  const char* name;
  const char* harmless;  ///< values that change nothing, a JSON array; first transformers' default
  const char* reason;
};

/// A supported field whose default is not transformers'.
struct DifferentDefault {
  const char* name;
  const char* theirs;  ///< as JSON
  const char* reason;
};

/// What a resume does about a field whose value is not that of the checkpoint's run.
enum class ResumeEffect : uint8_t {
  KEPT,        ///< the checkpoint's value takes effect
  NEW,         ///< the new value takes effect
  SHOWN_ONLY,  ///< the new value takes effect, and computes the same: it is not mentioned
  STEP_SIZE,   ///< the new value takes effect if a step has as many samples as before; otherwise refused
  REFUSED_SEED,  ///< the checkpoint's value if the flag is not given; otherwise refused, but with resume_anyway seed
  REFUSED_SAMPLING,      ///< refused, but with resume_anyway sampling
  REFUSED_WITHIN_EPOCH,  ///< as REFUSED_SAMPLING in the middle of an epoch; at its end the new value takes effect
};

struct ResumeRow {
  const char* name;
  ResumeEffect effect;
  const char* note;  ///< for the page of documentation; may be empty
};

struct OtherArgumentName {
  const char* other;
  const char* name;
};

std::span<const ArgumentRow> training_argument_rows();
std::span<const RefusedArgument> refused_training_arguments();
std::span<const DifferentDefault> different_training_defaults();
std::span<const OtherArgumentName> other_training_argument_names();
/// One a field, in the order of training_argument_rows().
std::span<const ResumeRow> training_resume_rows();

/// The field that `name` was probably meant to be, supported or not; empty when none is near.
std::string nearest_training_argument(std::string_view name);

}  // namespace lockstep
