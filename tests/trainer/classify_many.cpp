// Runs bert_classify many times, alone or as ranks, in copies of one process: loading LibTorch and Arrow takes
// longer than finding a mistake in a command line. A line of standard input is a run: RANKS (0: alone), the port
// where they meet, a folder, and the arguments, separated by tabs. Rank R writes to FOLDER/R.out and R.err. Prints
// a line for each run: the exit codes.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#define main bert_classify_main
#include "zoo/recipes/bert_classify.cpp"  // NOLINT(bugprone-suspicious-include): it is run many times
#undef main

namespace {

void write_into(int descriptor, const std::string& file) {
  const int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (opened < 0 || dup2(opened, descriptor) < 0) std::_Exit(125);
}

pid_t start(const std::vector<std::string>& words, int rank, int ranks) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(60);
  write_into(STDOUT_FILENO, fmt::format("{}/{}.out", words[2], rank));
  write_into(STDERR_FILENO, fmt::format("{}/{}.err", words[2], rank));
  if (ranks > 0) {
    for (const char* name : {"RANK", "LOCAL_RANK"}) setenv(name, std::to_string(rank).c_str(), 1);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) setenv(name, words[0].c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", words[1].c_str(), 1);
  }
  std::vector<std::string> arguments(words.begin() + 3, words.end());
  std::vector<char*> pointers = {const_cast<char*>("bert_classify")};
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::exit(bert_classify_main(static_cast<int>(pointers.size()) - 1, pointers.data()));
}

int exit_code_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words(1);
    for (const char c : line) {
      if (c == '\t')
        words.emplace_back();
      else
        words.back() += c;
    }
    const int ranks = std::stoi(words[0]);
    std::vector<pid_t> started;
    for (int rank = 0; rank < std::max(ranks, 1); ++rank) started.push_back(start(words, rank, ranks));
    for (const pid_t pid : started) std::cout << exit_code_of(pid) << ' ';
    std::cout << std::endl;
  }
}
