// For progress_terminal_test.py: a bar on standard error. Each line of standard input is a command (advance, log, finish), each
// answered by a line on standard output.
#include <iostream>
#include <string>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/base/main.h"
#include "lockstep/tracking/progress/progress_bar.h"

int main() {
  return lockstep::run_main("progress_runner", [] {
    lockstep::ProgressBar bar({.total = 100, .label = "train"});
    int logged = 0;
    for (std::string command; std::getline(std::cin, command);) {
      if (command == "advance") {
        std::this_thread::sleep_for(std::chrono::milliseconds(101));  // or the bar would not be drawn again
        bar.set("loss 0.4100");
        bar.advance();
      } else if (command == "log") {
        lockstep::log::warning("line " + std::to_string(++logged));
      } else if (command == "finish") {
        bar.finish();
      }
      std::cout << "done" << std::endl;
    }
    return 0;
  });
}
