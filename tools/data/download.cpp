#include "tools/data/download.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/tracking/progress/progress_bar.h"

namespace lockstep::tools {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw FileError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

int64_t size_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

std::string by_hand(const CatalogFile& file, const std::filesystem::path& whole) {
  return fmt::format(
      ". Without the network: get {} ({} bytes, SHA-256 {}) elsewhere, put it at {} and run this again",
      file.name, file.bytes, file.sha256, whole.string());
}

// What arrives, and how far it is.
struct Arriving {
  int fd = -1;
  int64_t have = 0, expected = 0;
  int write_error = 0;
  bool too_long = false;
  ProgressBar* bar = nullptr;

  bool take(const char* bytes, size_t size) {
    if (have + static_cast<int64_t>(size) > expected) {
      too_long = true;
      return false;
    }
    while (size > 0) {
      const ssize_t n = ::write(fd, bytes, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        write_error = errno;
        return false;
      }
      bytes += n;
      size -= static_cast<size_t>(n);
      have += n;
    }
    bar->update(have);
    return true;
  }
};

size_t take_bytes(char* bytes, size_t one, size_t count, void* arriving) {
  return static_cast<Arriving*>(arriving)->take(bytes, one * count) ? one * count : 0;
}

struct Outcome {
  CURLcode code = CURLE_OK;
  long status = 0;
  std::string what{};
};

Outcome transfer(const CatalogFile& file, Arriving& arriving, const DownloadOptions& options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) throw Error(fmt::format("libcurl: {}", curl_easy_strerror(ready)));
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) throw Error("libcurl gives no handle");
  char message[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl.get(), option, value); };
  const auto stall = static_cast<long>(options.stall_timeout.count());
  set(CURLOPT_URL, file.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, 10L);
  set(CURLOPT_FAILONERROR, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "lockstep-data-fetch");
  set(CURLOPT_CONNECTTIMEOUT, stall);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, stall);
  set(CURLOPT_ERRORBUFFER, message);
  set(CURLOPT_WRITEFUNCTION, &take_bytes);
  set(CURLOPT_WRITEDATA, &arriving);
  set(CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(arriving.have));
  Outcome outcome;
  outcome.code = curl_easy_perform(curl.get());
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &outcome.status);
  outcome.what = message[0] != '\0' ? message : curl_easy_strerror(outcome.code);
  return outcome;
}

// A cut connection and a server's passing trouble; not: no such file, no such name.
bool may_pass(const Outcome& outcome, bool has_arrived) {
  switch (outcome.code) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    case CURLE_COULDNT_CONNECT:
      return has_arrived;  // else nobody may ever be there
    case CURLE_HTTP_RETURNED_ERROR:
      return outcome.status >= 500 || outcome.status == 429 || outcome.status == 408;
    default:
      return false;
  }
}

void restart(Arriving& arriving, const std::filesystem::path& part) {
  if (::ftruncate(arriving.fd, 0) != 0 || ::lseek(arriving.fd, 0, SEEK_SET) != 0) fail("write", part);
  arriving.have = 0;
}

// Until `part` has all bytes; it may hold some.
void receive(const CatalogFile& file, const std::filesystem::path& part, const std::filesystem::path& whole,
             const DownloadOptions& options) {
  const UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.valid()) fail("write", part);
  Arriving arriving{.fd = fd.get(), .have = size_of(part), .expected = file.bytes};
  if (arriving.have > file.bytes) restart(arriving, part);
  if (::lseek(fd.get(), arriving.have, SEEK_SET) < 0) fail("write", part);
  if (arriving.have > 0 && options.say) {
    options.say(fmt::format("{}: going on behind {} MB", file.name, arriving.have / 1000000));
  }
  int64_t at_begin = arriving.have;
  ProgressBar bar({.total = file.bytes,
                   .initial = at_begin,
                   .label = file.name,
                   .unit = "B",
                   .leave = false,
                   .first_line = std::chrono::seconds(5)});
  arriving.bar = &bar;
  int failures = 0;
  int restarts = 0;
  while (arriving.have < file.bytes) {
    const int64_t before = arriving.have;
    const auto outcome = transfer(file, arriving, options);
    if (arriving.write_error != 0) {
      errno = arriving.write_error;
      fail("write", part);
    }
    // All of it, whatever the server says of what is to follow: the checksum decides.
    if (arriving.have == file.bytes && !arriving.too_long) break;
    const bool cannot_resume = before > 0 && (outcome.code == CURLE_RANGE_ERROR || outcome.status == 416);
    // This server sends whole files only. The first time may be for what an earlier run has left, each other one
    // is for a connection that was cut.
    if (cannot_resume && restarts <= options.retries) {
      ++restarts;
      restart(arriving, part);
      at_begin = 0;
      continue;
    }
    if (arriving.too_long) {
      std::filesystem::remove(part);
      throw FileError(fmt::format("{} is longer than the {} bytes of the catalog: another file{}", file.url,
                                  file.bytes, by_hand(file, whole)));
    }
    if (outcome.code == CURLE_OK) {
      const auto got = arriving.have;
      std::filesystem::remove(part);
      throw FileError(fmt::format("{} has {} bytes; the catalog says {}: another file{}", file.url, got,
                                  file.bytes, by_hand(file, whole)));
    }
    failures = arriving.have > before ? 1 : failures + 1;
    if (!may_pass(outcome, arriving.have > at_begin) || failures > options.retries) {
      if (arriving.have == 0) std::filesystem::remove(part);
      throw FileError(fmt::format("cannot download {}: {}{}", file.url, outcome.what, by_hand(file, whole)));
    }
    const auto pause = options.first_pause * (1 << std::min(failures - 1, 5));
    if (options.say) {
      options.say(fmt::format("{}: {}; again in {:.1f} s", file.name, outcome.what,
                              std::chrono::duration<double>(pause).count()));
    }
    std::this_thread::sleep_for(pause);
  }
  if (::fsync(fd.get()) != 0) fail("write", part);
}

}  // namespace

std::string sha256_of(const std::filesystem::path& path) {
  if (sodium_init() < 0) throw Error("libsodium cannot be initialised");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail("open", path);
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  std::vector<unsigned char> buffer(1 << 20);
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    if (n == 0) break;
    crypto_hash_sha256_update(&state, buffer.data(), static_cast<unsigned long long>(n));
  }
  unsigned char sum[crypto_hash_sha256_BYTES];
  crypto_hash_sha256_final(&state, sum);
  std::string text;
  for (const unsigned char byte : sum) text += fmt::format("{:02x}", byte);
  return text;
}

std::filesystem::path download(const CatalogFile& file, const std::filesystem::path& folder,
                               const DownloadOptions& options) {
  const auto whole = folder / file.name;
  if (std::filesystem::exists(whole)) {
    const auto sum = sha256_of(whole);
    if (sum == file.sha256) return whole;
    throw FileError(fmt::format(
        "{} has {} bytes and the SHA-256 {}; expected {} bytes and {}. Remove it, and it is downloaded",
        whole.string(), size_of(whole), sum, file.bytes, file.sha256));
  }
  const auto part = folder / (file.name + ".part");
  for (bool resumed = size_of(part) > 0;; resumed = false) {
    receive(file, part, whole, options);
    const auto sum = sha256_of(part);
    if (sum == file.sha256) break;
    std::filesystem::remove(part);
    if (!resumed) {
      throw FileError(fmt::format("{} has the SHA-256 {}; expected {}: another file, or damaged on the way{}",
                                  file.url, sum, file.sha256, by_hand(file, whole)));
    }
    if (options.say)
      options.say(fmt::format("{}: the earlier part does not fit; downloading all of it", file.name));
  }
  std::filesystem::rename(part, whole);
  return whole;
}

}  // namespace lockstep::tools
