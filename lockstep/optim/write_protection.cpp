#include "lockstep/optim/write_protection.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::detail {

namespace {

/// What the signal handler looks at: it may neither lock nor allocate.
struct Watched {
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<size_t> bytes{0};
  std::atomic<const std::vector<WriteProtection::Named>*> contents{nullptr};
};
std::array<Watched, 64> watched;
struct sigaction previous_action {};

void print(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const Watched& range : watched) {
    const std::byte* const begin = range.begin.load();
    if (begin == nullptr || address < begin || address >= begin + range.bytes.load()) continue;
    print("[lockstep] ");
    const char* what = "a parameter";
    for (const WriteProtection::Named& named : *range.contents.load()) {
      if (address >= named.begin && address < static_cast<const std::byte*>(named.begin) + named.bytes) {
        what = named.what.c_str();
      }
    }
    print(what);
    print(
        " was written outside the optimizer's step(), but all ranks share it: let the optimizer change it, "
        "or hold writable_parameters() while every rank waits\n");
    ::signal(SIGSEGV, SIG_DFL);  // the write is tried again and ends the process
    return;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    ::signal(SIGSEGV, SIG_DFL);
  }
}

void install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGSEGV, &action, &previous_action);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

WriteProtection::~WriteProtection() {
  for (const auto& range : ranges_) {
    ::mprotect(range->begin, range->bytes, PROT_READ | PROT_WRITE);
    for (Watched& slot : watched) {
      if (slot.begin.load() != range->begin) continue;
      slot.begin.store(nullptr);
      slot.contents.store(nullptr);
    }
  }
}

void WriteProtection::add(void* begin, size_t bytes, std::vector<Named> contents) {
  install_handler();
  for (Watched& slot : watched) {
    if (slot.contents.load() != nullptr) continue;
    ranges_.push_back(
        std::make_unique<Range>(Range{static_cast<std::byte*>(begin), bytes, std::move(contents)}));
    slot.bytes.store(bytes);
    slot.contents.store(&ranges_.back()->contents);
    slot.begin.store(ranges_.back()->begin);
    return;
  }
  throw Error(
      fmt::format("more than {} ranges of parameters cannot be protected; set protect_parameters to false",
                  watched.size()));
}

void WriteProtection::unprotect() {
  if (writers_++ == 0) set(PROT_READ | PROT_WRITE);
}
void WriteProtection::protect() {
  if (--writers_ == 0) set(PROT_READ);
}

void WriteProtection::set(int rights) {
  for (const auto& range : ranges_) {
    if (::mprotect(range->begin, range->bytes, rights) == 0) continue;
    throw Error(fmt::format("cannot change the protection of shared parameters: {}", std::strerror(errno)));
  }
}

}  // namespace lockstep::detail
