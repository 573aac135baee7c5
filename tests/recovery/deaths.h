// Ranks that die where they are told to.
//
// HEAL_KILLS names deaths, with spaces between: RANK:STEP:PLACE:HOW. PLACE is what the program calls it, or us=N: N
// microseconds after in_step(), from another thread. HOW: a signal's number, exit, throw, or hold: it stays there until
// somebody ends it. Each happens once, which a file in
// HEAL_DIR remembers, with the time; one with a * behind it happens every time. Where HEAL_EVENTS names lockrun's event log, a
// death in the main thread waits until a spare waits.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"

namespace lockstep::test {

inline std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Has the first death of HEAL_KILLS come?
inline bool has_first_death() { return ::access((setting("HEAL_DIR") + "/death0").c_str(), F_OK) == 0; }

/// With HEAL_STUCK=yes a process in the place of another one never arrives.
inline void get_stuck() {
  if (setting("HEAL_STUCK") == "yes" && has_first_death())
    std::this_thread::sleep_for(std::chrono::minutes(10));
}

/// With HEAL_WAITS=STEP it waits, where the file `waits` says so, until there is a file `go`.
inline void wait_for_go() {
  if (setting("HEAL_WAITS").empty() || !has_first_death()) return;
  const std::string folder = setting("HEAL_DIR");
  std::ofstream(folder + "/waits") << "here";
  const double deadline = monotonic_seconds() + 300;
  while (::access((folder + "/go").c_str(), F_OK) != 0) {
    if (monotonic_seconds() > deadline) throw std::runtime_error("nobody lets this process go on");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// With HEAL_REFUSES=yes it ends at once.
inline void refuse_to_replace() {
  if (setting("HEAL_REFUSES") == "yes" && has_first_death()) std::exit(1);
}

inline void wait_for_first_death(double longest_seconds) {
  const double deadline = monotonic_seconds() + longest_seconds;
  while (!has_first_death() && monotonic_seconds() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// Somebody else ends this process.
inline void wait_for_end() {
  std::this_thread::sleep_for(std::chrono::minutes(10));
  throw std::runtime_error("nobody has ended this process");
}

/// Until more spares have waited than ranks have died; `counts_deaths` false: until one has waited. Throws where none comes.
inline void wait_for_spare(bool counts_deaths = true) {
  const std::string log = setting("HEAL_EVENTS");
  const double deadline = monotonic_seconds() + 600;
  while (!log.empty()) {
    std::ifstream file(log);
    int spares = 0;
    for (std::string line; std::getline(file, line);) {
      const bool is_exit = line.find("\"event\":\"exit\"") != line.npos;
      const bool is_spares = line.find("\"spare\":") != line.npos;
      if (line.find("\"event\":\"spare\"") != line.npos) ++spares;
      // A spare that has died, or a rank whose place one has taken.
      if (counts_deaths && is_exit && (is_spares || line.find("\"rank\":") != line.npos)) --spares;
    }
    if (spares > 0) return;
    if (monotonic_seconds() > deadline) throw std::runtime_error("no spare waits");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

class Deaths {
 public:
  explicit Deaths(int rank) : rank_(rank) {
    std::istringstream words(setting("HEAL_KILLS"));
    for (std::string word; words >> word;) {
      Death death{.number = all_.size()};
      if (word.back() == '*') {
        death.always = true;
        word.pop_back();
      }
      std::istringstream parts(word);
      std::string rank_text, step;
      std::getline(parts, rank_text, ':');
      std::getline(parts, step, ':');
      std::getline(parts, death.place, ':');
      std::getline(parts, death.how, ':');
      death.rank = std::stoi(rank_text);
      death.step = std::stoll(step);
      all_.push_back(death);
    }
  }
  void at(const char* place, int64_t step) const {
    for (const Death& death : all_) {
      if (death.rank == rank_ && death.step == step && death.place == place && is_first_time(death))
        die(death.how, /*is_main_thread=*/true);
    }
  }
  /// From another thread, after the time that a death names.
  void in_step(int64_t step) const {
    for (const Death& death : all_) {
      if (death.rank != rank_ || death.step != step || !death.place.starts_with("us=") ||
          !is_first_time(death))
        continue;
      const auto after = std::chrono::microseconds(std::stoll(death.place.substr(3)));
      std::thread([after, how = death.how] {
        std::this_thread::sleep_for(after);
        die(how, /*is_main_thread=*/false);
      }).detach();
    }
  }

 private:
  struct Death {
    int rank = 0;
    int64_t step = 0;
    std::string place{}, how{};
    bool always = false;
    size_t number = 0;
  };

  static bool is_first_time(const Death& death) {
    const bool is_at_once = !death.place.starts_with("us=");
    if (death.always) return true;
    const std::string file = fmt::format("{}/death{}", setting("HEAL_DIR"), death.number);
    const int fd = ::open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0) return false;
    if (is_at_once) wait_for_spare();
    // For a death that comes at once: when it was.
    if (is_at_once) ::dprintf(fd, "%.6f", monotonic_seconds());
    ::close(fd);
    return true;
  }

  static void die(const std::string& how, bool is_main_thread) {
    if (how == "exit" && is_main_thread) std::exit(1);
    if (how == "exit") std::_Exit(1);
    if (how == "hold") return wait_for_end();
    if (how == "throw") throw std::runtime_error("planned");
    std::signal(std::stoi(how), SIG_DFL);
    ::raise(std::stoi(how));
  }

  int rank_;
  std::vector<Death> all_{};
};

}  // namespace lockstep::test
