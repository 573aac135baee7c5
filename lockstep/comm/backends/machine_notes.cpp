#include "lockstep/comm/backends/machine_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::backends {
namespace {

using Bytes = MachineNotes::Bytes;
using Entry = shm::SetupLog::Entry;
using Key = shm::SetupLog::Key;

/// From this size on a note is told once: by the first machine.
constexpr size_t kLarge = 4096;
/// A store takes values of at most 8 MiB.
constexpr size_t kPiece = size_t{4} << 20;
const std::string kOffer = "lockstep/notes/offer";

std::string notes_of(int rank) { return fmt::format("lockstep/notes/{}", rank); }
std::string wish_of(int rank) { return fmt::format("lockstep/notes/wish/{}", rank); }
std::string gift_to(int rank, size_t number) {
  return fmt::format("lockstep/notes/gift/{}/{}", rank, number);
}

uint64_t hash_of_note(std::span<const std::byte> bytes) {
  // FNV-1a, eight bytes at a time.
  uint64_t hash = 0xcbf29ce484222325U;
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    hash = (hash ^ word) * 0x100000001b3U;
    hash ^= hash >> 29U;
  }
  for (; at < bytes.size(); ++at) hash = (hash ^ static_cast<uint64_t>(bytes[at])) * 0x100000001b3U;
  return hash;
}

template <class Value>
void append_value(Bytes& to, const Value& value) {
  const auto* const from = reinterpret_cast<const uint8_t*>(&value);
  to.insert(to.end(), from, from + sizeof value);
}

/// Reads what append_value() has written.
class Reading {
 public:
  explicit Reading(const Bytes& bytes) : bytes_(bytes) {}
  bool at_end() const { return at_ == bytes_.size(); }
  template <class Value>
  Value next() {
    Value value;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> next(size_t count) {
    if (bytes_.size() - at_ < count) throw Error("the notes of a rank of a lost machine end too soon");
    at_ += count;
    return std::as_bytes(std::span(bytes_)).subspan(at_ - count, count);
  }

 private:
  const Bytes& bytes_;
  size_t at_ = 0;
};

/// What a large note is known by.
struct Large {
  Key key;
  uint64_t bytes, hash;
  auto operator<=>(const Large&) const = default;
};

Large describe_large(const Entry& entry) {
  return {entry.key, entry.bytes, hash_of_note(shm::SetupLog::bytes_of(entry))};
}

}  // namespace

void MachineNotes::put(const std::string& key, const Bytes& bytes) const {
  uint64_t pieces = 0;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto count = static_cast<std::ptrdiff_t>(std::min(kPiece, bytes.size() - at));
    store_->set(fmt::format("{}/{}", key, pieces++), Bytes(begin, begin + count));
  }
  Bytes head;
  append_value(head, pieces);
  store_->set(key, head);
}

Bytes MachineNotes::get(const std::string& key) const {
  const Bytes head = store_->get(key);
  const auto pieces = Reading(head).next<uint64_t>();
  Bytes bytes;
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const Bytes next = store_->get(fmt::format("{}/{}", key, piece));
    bytes.insert(bytes.end(), next.begin(), next.end());
  }
  return bytes;
}

void MachineNotes::remove(const std::string& key) const {
  const Bytes head = store_->get(key);
  const auto pieces = Reading(head).next<uint64_t>();
  store_->deleteKey(key);
  for (uint64_t piece = 0; piece < pieces; ++piece) store_->deleteKey(fmt::format("{}/{}", key, piece));
}

void MachineNotes::offer(const std::vector<shm::SetupLog*>& logs) const {
  std::set<Large> offered;
  for (shm::SetupLog* const log : logs) {
    for (const Entry* const entry : log->all()) {
      if (entry->bytes >= kLarge) offered.insert(describe_large(*entry));
    }
  }
  Bytes bytes;
  for (const Large& each : offered) append_value(bytes, each);
  put(kOffer, bytes);
}

bool MachineNotes::is_offered() const { return store_->check({kOffer}); }

bool MachineNotes::tell(shm::SetupLog& log) const {
  const Bytes text = get(kOffer);
  std::set<Large> offered;
  for (Reading reading(text); !reading.at_end();) offered.insert(reading.next<Large>());
  Bytes bytes;
  for (const Entry* const entry : log.all()) {
    const bool is_offered = entry->bytes >= kLarge && offered.contains(describe_large(*entry));
    append_value(bytes, *entry);
    append_value(bytes, static_cast<uint8_t>(is_offered));
    if (is_offered) {
      append_value(bytes, describe_large(*entry).hash);
      continue;
    }
    const auto own = shm::SetupLog::bytes_of(*entry);
    if (bytes.size() + own.size() > kMostBytes) return false;
    const auto* const begin = reinterpret_cast<const uint8_t*>(own.data());
    bytes.insert(bytes.end(), begin, begin + own.size());
  }
  put(notes_of(rank_), bytes);
  return true;
}

void MachineNotes::take(shm::SetupLog& log) {
  if (!store_->check({notes_of(rank_)}))
    throw Error("this process is to take the place of a rank of a lost machine, which has left no notes");
  const Bytes bytes = get(notes_of(rank_));
  Bytes wish;
  for (Reading reading(bytes); !reading.at_end();) {
    const auto entry = reading.next<Entry>();
    if (reading.next<uint8_t>() != 0) {
      const auto hash = reading.next<uint64_t>();
      wanted_.push_back({entry, hash});
      append_value(wish, Large{entry.key, entry.bytes, hash});
      continue;
    }
    const auto piece = reading.next(entry.bytes);
    log.append(entry, {&piece, 1});
  }
  if (!wanted_.empty()) put(wish_of(rank_), wish);
}

bool MachineNotes::take_large(shm::SetupLog& log, const std::function<bool()>& is_over,
                              std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (; taken_ < wanted_.size(); ++taken_) {
    const std::string gift = gift_to(rank_, taken_);
    while (!store_->check({gift})) {
      if (is_over()) return false;
      if (std::chrono::steady_clock::now() >= deadline) {
        throw TimeoutError(
            fmt::format("rank 0 has not given what rank {} of a lost machine got, within {} ms", rank_,
                        timeout.count()),
            {0});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Bytes bytes = get(gift);
    const auto piece = std::as_bytes(std::span(bytes));
    const auto& [entry, hash] = wanted_[taken_];
    if (bytes.size() != entry.bytes || hash_of_note(piece) != hash) {
      throw Error(fmt::format("a note of {} bytes of rank {} of a lost machine has come back with others",
                              entry.bytes, rank_));
    }
    log.append(entry, {&piece, 1});
    remove(gift);
  }
  return true;
}

void MachineNotes::give(const std::vector<shm::SetupLog*>& logs, int ranks) const {
  for (int rank = 0; rank < ranks; ++rank) {
    if (!store_->check({wish_of(rank)})) continue;
    const Bytes wish = get(wish_of(rank));
    size_t number = 0;
    for (Reading reading(wish); !reading.at_end();) {
      const auto wanted = reading.next<Large>();
      const Entry* found = nullptr;
      for (shm::SetupLog* const log : logs) {
        const Entry* const entry = log->find(wanted.key);
        // Ranks have other bytes under the same key, if they got parts.
        if (entry != nullptr && entry->bytes == wanted.bytes && describe_large(*entry) == wanted) {
          found = entry;
          break;
        }
      }
      if (found == nullptr)
        throw Error(
            fmt::format("what rank {} of a lost machine got is no longer on the first machine", rank));
      const auto bytes = shm::SetupLog::bytes_of(*found);
      const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
      put(gift_to(rank, number++), Bytes(begin, begin + bytes.size()));
    }
    remove(wish_of(rank));
  }
}

}  // namespace lockstep::backends
