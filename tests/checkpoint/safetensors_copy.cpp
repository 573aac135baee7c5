// Loads a safetensors file and saves it again: safetensors_copy FROM TO.
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"

int main(int argc, char** argv) {
  return lockstep::run_main("safetensors_copy", [&] {
    if (argc != 3) throw lockstep::ValueError("usage: safetensors_copy FROM TO");
    const auto file = lockstep::checkpoint::load_safetensors(argv[1]);
    lockstep::checkpoint::save_safetensors(argv[2], file.tensors, file.metadata);
    return 0;
  });
}
