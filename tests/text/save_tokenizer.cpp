// save_tokenizer SOURCE TARGET: loads a model directory and saves its tokenizer, for the parity test.
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/zoo/text/bert_tokenizer.h"

int main(int argc, char** argv) {
  return lockstep::run_main("save_tokenizer", [&] {
    if (argc != 3) throw lockstep::ValueError("expected SOURCE and TARGET");
    lockstep::text::BertTokenizer::from_directory(argv[1]).save(argv[2]);
    return 0;
  });
}
