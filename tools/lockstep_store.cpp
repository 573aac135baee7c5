// lockstep-store: serves LibTorch's TCPStore on a socket that lockrun holds; started on the first connection
// to it.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/main.h"

namespace {

struct Place {
  std::string host;
  uint16_t port;
};

/// Where the socket listens.
Place find_place(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[INET6_ADDRSTRLEN] = {};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    if (address.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
      ::inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
      return {host, ntohs(v4.sin_port)};
    }
    if (address.ss_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
      ::inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
      return {host, ntohs(v6.sin6_port)};
    }
  }
  throw lockstep::ValueError(fmt::format("descriptor {} is not a listening socket", fd));
}

/// Version and file of the LibTorch that this program runs with, for `lockstep env`.
int print_libtorch() {
  const uint64_t version = aoti_torch_abi_version();  // a byte each for major, minor, patch, from the top
  Dl_info library{};
  ::dladdr(reinterpret_cast<const void*>(&aoti_torch_abi_version), &library);
  std::printf("%d.%d.%d, %s\n", static_cast<int>(version >> 56 & 255), static_cast<int>(version >> 48 & 255),
              static_cast<int>(version >> 40 & 255), library.dli_fname == nullptr ? "?" : library.dli_fname);
  return 0;
}

/// Stands between c10d's log and standard error: a stranger's connection costs c10d a stack trace of 16
/// lines, and the reader one line, at most one a minute.
class Log {
 public:
  /// Takes over standard error until it is destroyed; a thread passes messages on.
  Log() : error_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw lockstep::Error("cannot open a pipe");
    from_.reset(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    reader_ = std::thread([this] { pass_on(); });
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log() {
    ::dup2(error_.get(), STDERR_FILENO);  // the pipe's only writer, so the thread comes to its end
    reader_.join();
  }

 private:
  void pass_on() {
    char buffer[4096];
    std::string text;
    while (true) {
      const ssize_t size = ::read(from_.get(), buffer, sizeof buffer);
      if (size == 0) return;
      if (size < 0) continue;
      text.append(buffer, static_cast<size_t>(size));
      for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
        take_line(text.substr(0, end));
        text.erase(0, end + 1);
      }
    }
  }

  void take_line(const std::string& line) {
    constexpr std::string_view mark = "[c10d] ";
    const size_t at = line.find(mark);
    if (at == line.npos) return;                                          // of a stack trace
    if (line.find("hostname of the client socket") != line.npos) return;  // a rank's: its address has no name
    ++count_;
    const double now = lockstep::monotonic_seconds();
    if (said_at_ && now < *said_at_ + kQuiet) return;
    said_at_ = now;
    const std::string again = count_ > 1 ? fmt::format(" ({} so far)", count_) : "";
    const std::string out =
        fmt::format("lockstep-store: warning: MASTER_PORT had a connection that no rank makes{}: {}\n", again,
                    line.substr(at + mark.size()));
    if (::write(error_.get(), out.data(), out.size()) < 0) return;  // nobody reads
  }

  static constexpr double kQuiet = 60;
  lockstep::UniqueFd error_, from_;
  size_t count_ = 0;
  std::optional<double> said_at_;
  std::thread reader_;
};

int serve(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--libtorch") == 0) return print_libtorch();
  int fd = -1;
  const char* text = argc == 2 ? argv[1] : "";
  if (std::from_chars(text, text + std::strlen(text), fd).ec != std::errc()) {
    throw lockstep::ValueError(
        "expected the number of a listening socket; this program is started by lockrun");
  }
  ::signal(SIGPIPE, SIG_IGN);  // a stranger may hang up before its answer
  // What is sent to all processes of a job (systemd, SLURM) asks the ranks to save: they still need the store. lockrun's
  // guardian ends it, by SIGKILL.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  const Log log;
  c10d::TCPStoreOptions options;
  const Place place = find_place(fd);
  options.port = place.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = fd;
  const c10d::TCPStore store(place.host, options);
  // It serves from a thread of its own until lockrun ends this process.
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("lockstep-store", [&] { return serve(argc, argv); });
}
