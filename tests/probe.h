// What the test programs that answer questions share; tests/probe.py asks them.
#pragma once

#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/main.h"

namespace lockstep::testing {

/// Reads a line of JSON with a question, writes a line with {"answer": ...} or {"error": what the exception says}, until
/// the input ends. Returns the exit code.
inline int answer_questions(const char* program,
                            const std::function<nlohmann::json(const nlohmann::json&)>& answer) {
  return run_main(program, [&] {
    for (std::string line; std::getline(std::cin, line);) {
      nlohmann::json reply;
      try {
        reply["answer"] = answer(nlohmann::json::parse(line));
      } catch (const std::exception& error) {
        reply["error"] = error.what();
      }
      std::cout << reply << "\n" << std::flush;
    }
    return 0;
  });
}

}  // namespace lockstep::testing
