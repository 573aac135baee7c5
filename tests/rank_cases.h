// A program whose cases are run by several ranks under lockrun: `program <case>...`, one after the other.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "lockstep/base/main.h"

namespace lockstep::testing {

#define CHECK_TRUE(condition) \
  if (!(condition))           \
  throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition)

/// Runs `call`, which must throw an E whose message contains `part`.
template <class E>
void check_throws(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const E& error) {
    if (std::string(error.what()).find(part) == std::string::npos) {
      throw std::runtime_error("the error lacks \"" + part + "\": " + error.what());
    }
    return;
  }
  throw std::runtime_error("no error; expected one with \"" + part + "\"");
}

inline int run_case(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases) {
  return run_main(argv[0], [&]() -> int {
    if (argc < 2) throw std::runtime_error("name one of this program's cases");
    for (int i = 1; i < argc; ++i) {
      const auto it = cases.find(argv[i]);
      if (it == cases.end()) throw std::runtime_error(std::string("there is no case ") + argv[i]);
      try {
        it->second();
      } catch (...) {
        if (argc > 2) std::fprintf(stderr, "in case %s\n", argv[i]);
        throw;
      }
    }
    return 0;
  });
}

/// Runs the cases that the arguments name, one after the other.
inline int run_cases(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases) {
  return run_main(argv[0], [&]() -> int {
    if (argc < 2) throw std::runtime_error("name one or more of this program's cases");
    for (int i = 1; i < argc; ++i) {
      const auto it = cases.find(argv[i]);
      if (it == cases.end()) throw std::runtime_error(std::string("there is no case ") + argv[i]);
      try {
        it->second();
      } catch (const std::exception& error) {
        throw std::runtime_error(std::string(argv[i]) + ": " + error.what());
      }
    }
    return 0;
  });
}

}  // namespace lockstep::testing
