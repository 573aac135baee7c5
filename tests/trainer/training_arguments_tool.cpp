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

nlohmann::json tables() {
  nlohmann::json rows = nlohmann::json::array(), refused = rows, different = rows, others = rows;
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
  return {{"rows", rows},
          {"refused", refused},
          {"different", different},
          {"other_names", others},
          {"defaults", nlohmann::json::parse(to_json(lockstep::TrainingArguments()))}};
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
