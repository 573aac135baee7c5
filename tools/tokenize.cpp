// `lockstep tokenize`: the command line; lockstep-tokenize, of the component zoo, does the work.
#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "tools/programs.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct TokenizeOptions {
  std::filesystem::path vocab;
  std::string input = "-";
  bool cased = false;
  size_t max_length = 0;
};

constexpr auto kTokenizeFlags = std::to_array<Flag<TokenizeOptions>>({
    {.name = "vocab",
     .member = &TokenizeOptions::vocab,
     .words = "vocab.txt, tokenizer.json or a model directory",
     .is_required = true},
    {.name = "cased",
     .member = &TokenizeOptions::cased,
     .words = "Keep case and accents; for a vocab.txt only"},
    {.name = "max-length",
     .member = &TokenizeOptions::max_length,
     .check = FlagCheck::between(2, 1 << 30),
     .words = "Truncate to N tokens, special ones included. Default: do not truncate"},
    {.name = "input",
     .member = &TokenizeOptions::input,
     .value = "FILE",
     .words = "File to read. Default: standard input"},
});

int tokenize(const TokenizeOptions& options) {
  become_zoo_program("lockstep-tokenize",
                     {options.vocab.string(), options.input, options.cased ? "cased" : "as-is",
                      std::to_string(options.max_length)});
}

}  // namespace

void add_tokenize(CommandLine app, Action& action) {
  auto options = std::make_shared<TokenizeOptions>();
  auto command = app.add_subcommand("tokenize",
                                    "Reads JSON lines {\"text\", \"text_pair\"?} and writes {\"input_ids\", "
                                    "\"token_type_ids\"}, not padded, with "
                                    "BERT's WordPiece tokenizer.");
  command.add_table<TokenizeOptions>(kTokenizeFlags, *options);
  command.callback([options, &action] { action = [options] { return tokenize(*options); }; });
}

}  // namespace lockstep::tools
