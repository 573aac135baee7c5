// A rank that fails: by an exception in main ("throw"), or by one that nobody catches ("terminate").
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/record_errors.h"

int main(int argc, char** argv) {
  lockstep::record_errors();
  if (argc > 1 && std::string(argv[1]) == "terminate") throw std::out_of_range("beyond \"all\" limits");
  return lockstep::run_main("recorded_rank",
                            []() -> int { throw lockstep::ValueError("the flag is wrong"); });
}
