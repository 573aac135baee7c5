// For training_arguments_test.py: `tables` prints the table of TrainingArguments as JSON, `read FILE` prints what
// was read from a training_args.json.
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/main.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"
#include "lockstep/trainer/training_arguments.h"

namespace {

/// For the page of documentation.
const char* words_of(lockstep::ResumeEffect effect) {
  switch (effect) {
    case lockstep::ResumeEffect::KEPT:
      return "kept";
    case lockstep::ResumeEffect::NEW:
      return "new";
    case lockstep::ResumeEffect::SHOWN_ONLY:
      return "new, not mentioned";
    case lockstep::ResumeEffect::STEP_SIZE:
      return "refused, unless a step has as many samples";
    case lockstep::ResumeEffect::REFUSED_SEED:
      return "the checkpoint's, if the flag is not given; otherwise refused without `--resume-anyway seed`";
    case lockstep::ResumeEffect::REFUSED_SAMPLING:
      return "refused without `--resume-anyway sampling`";
    case lockstep::ResumeEffect::REFUSED_WITHIN_EPOCH:
      return "within an epoch refused without `--resume-anyway sampling`";
  }
  return "unknown";
}

nlohmann::json tables() {
  nlohmann::json rows = nlohmann::json::array(), refused = rows, different = rows, others = rows,
                 resume = rows;
  for (const auto& row : lockstep::training_argument_rows()) {
    rows.push_back({{"name", row.name},
                    {"group", row.group},
                    {"preset_text", row.preset_text == nullptr ? nlohmann::json() : row.preset_text},
                    {"expected", row.expected},
                    {"help", row.help}});
  }
  for (const auto& [name, harmless, reason] : lockstep::refused_training_arguments()) {
    refused.push_back({{"name", name}, {"harmless", nlohmann::json::parse(harmless)}, {"reason", reason}});
  }
  for (const auto& [name, theirs, reason] : lockstep::different_training_defaults()) {
    different.push_back({{"name", name}, {"theirs", nlohmann::json::parse(theirs)}, {"reason", reason}});
  }
  for (const auto& [other, name] : lockstep::other_training_argument_names()) {
    others.push_back({{"other", other}, {"name", name}});
  }
  for (const auto& [name, effect, note] : lockstep::training_resume_rows()) {
    resume.push_back({{"name", name}, {"effect", words_of(effect)}, {"note", note}});
  }
  return {
      {"rows", rows},          {"resume", resume},
      {"refused", refused},    {"different", different},
      {"other_names", others}, {"defaults", nlohmann::json::parse(to_json(lockstep::TrainingArguments()))}};
}

int run(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "read") == 0) {
    std::stringstream text;
    text << std::ifstream(argv[2]).rdbuf();
    std::cout << to_json(lockstep::training_arguments_from_json(text.str(), argv[2])) << '\n';
  } else {
    std::cout << tables().dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("training_arguments_tool", [&] { return run(argc, argv); });
}
