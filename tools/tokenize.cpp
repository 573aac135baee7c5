// `lockstep tokenize`: the command line; lockstep-tokenize, of the component zoo, does the work.
#include <filesystem>
#include <memory>
#include <string>

#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct Options {
  std::filesystem::path vocab;
  std::string input = "-";
  bool cased = false;
  size_t max_length = 0;
};

int tokenize(const Options& options) {
  become_zoo_program("lockstep-tokenize",
                     {options.vocab.string(), options.input, options.cased ? "cased" : "as-is",
                      std::to_string(options.max_length)});
}

}  // namespace

void add_tokenize(CommandLine app, Action& action) {
  auto options = std::make_shared<Options>();
  auto command = app.add_subcommand("tokenize",
                                    "Reads JSON lines {\"text\", \"text_pair\"?} and writes {\"input_ids\", "
                                    "\"token_type_ids\"}, not padded, with "
                                    "BERT's WordPiece tokenizer.");
  command.add_option("--vocab", options->vocab, "vocab.txt, tokenizer.json or a model directory").required();
  command.add_flag("--cased", options->cased, "Keep case and accents; for a vocab.txt only.");
  command.add_option("--max-length", options->max_length, "Truncate to N tokens, special ones included")
      .in_range(2, 1 << 30)
      .default_text("do not truncate");
  command.add_option("--input", options->input, "File to read")
      .type_name("FILE")
      .default_text("standard input");
  command.callback([options, &action] { action = [options] { return tokenize(*options); }; });
}

}  // namespace lockstep::tools
