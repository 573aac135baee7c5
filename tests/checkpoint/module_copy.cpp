// Loads a TiedModule's file and saves the module again: module_copy FROM TO.
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/module_file.h"
#include "tests/checkpoint/tied_module.h"

int main(int argc, char** argv) {
  return lockstep::run_main("module_copy", [&] {
    if (argc != 3) throw lockstep::ValueError("usage: module_copy FROM TO");
    lockstep::TiedModule module;
    lockstep::load_module(module, argv[1]);
    lockstep::save_module(module, argv[2]);
    return 0;
  });
}
