#include "lockstep/comm/objects.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep {
namespace {

using nlohmann::json;

/// Objects in objects: reading and writing take stack for each, which a hostile one could exhaust.
constexpr size_t kDeepest = 500;

std::string too_deep() {
  return fmt::format("an object of more than {} levels is neither sent nor received", kDeepest);
}

/// Goes over what is said to be CBOR without recursion: json::from_cbor() takes stack for each level, also
/// for strings that consist of strings. Throws ValueError that begins with `who` for what is malformed, of
/// unknown length (which nothing of ours writes) or too deep.
void check_received(const std::string& bytes, const std::string& who) {
  const auto malformed = [&](size_t at) {
    return ValueError(fmt::format("{} sent {} bytes that are no object (CBOR): malformed at byte {}", who,
                                  bytes.size(), at));
  };
  std::vector<uint64_t> left{1};  // values that are to come, of each level
  for (size_t at = 0; !left.empty();) {
    if (left.back() == 0) {
      left.pop_back();
      continue;
    }
    --left.back();
    if (at == bytes.size()) throw malformed(at);
    const auto first = static_cast<uint8_t>(bytes[at]);
    const int kind = first >> 5, info = first & 31;
    const size_t more = info < 24 ? 0 : info < 28 ? size_t{1} << (info - 24) : bytes.size();
    if (bytes.size() - at <= more) throw malformed(at);
    uint64_t value = info < 24 ? static_cast<uint64_t>(info) : 0;
    for (size_t i = 1; i <= more; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
    at += 1 + more;
    if (kind == 2 || kind == 3) {  // bytes, text
      if (value > bytes.size() - at) throw malformed(at);
      at += value;
    } else if (kind == 4 || kind == 5) {  // list; pairs
      if (value > bytes.size() - at) throw malformed(at);
      if (left.size() > kDeepest) throw ValueError(fmt::format("{}: {}", who, too_deep()));
      left.push_back(kind == 4 ? value : 2 * value);
    } else if (kind == 6) {  // a tag in front of a value
      ++left.back();
    }
  }
}

/// Without recursion, for the same reason.
bool is_too_deep(const json& object) {
  std::vector<std::pair<const json*, size_t>> open{{&object, 0}};
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (!value->is_structured()) continue;
    if (depth == kDeepest) return true;
    for (const json& inner : *value) open.emplace_back(&inner, depth + 1);
  }
  return false;
}

std::string encode(const json& object) {
  if (is_too_deep(object)) throw ValueError(too_deep());
  return to_cbor(object);
}

json decode(const std::string& bytes, int source) {
  const std::string who = "rank " + std::to_string(source);
  check_received(bytes, who);
  try {
    return from_cbor(bytes);
  } catch (const json::exception& error) {
    throw ValueError(
        fmt::format("{} sent {} bytes that are no object (CBOR): {}", who, bytes.size(), error.what()));
  }
}

std::vector<json> decode_all(const std::vector<std::string>& all) {
  std::vector<json> objects;
  for (size_t r = 0; r < all.size(); ++r) objects.push_back(decode(all[r], static_cast<int>(r)));
  return objects;
}

}  // namespace

json broadcast_object(const ProcessGroup& group, const json& object, BroadcastOptions options) {
  const bool is_source = group.rank() == options.src;
  return decode(group.broadcast_bytes(is_source ? encode(object) : std::string(), options), options.src);
}

std::vector<json> all_gather_object(const ProcessGroup& group, const json& object,
                                    CollectiveOptions options) {
  return decode_all(group.all_gather_bytes(encode(object), options));
}

std::vector<json> gather_object(const ProcessGroup& group, const json& object, GatherOptions options) {
  return decode_all(group.gather_bytes(encode(object), options));
}

json scatter_object(const ProcessGroup& group, const std::vector<json>& objects, ScatterOptions options) {
  std::vector<std::string> parts;
  for (const json& object : objects) parts.push_back(encode(object));
  return decode(group.scatter_bytes(parts, options), options.src);
}

void send_object(const ProcessGroup& group, const json& object, int dst, MessageOptions options) {
  group.send_bytes(encode(object), dst, options);
}

json recv_object(const ProcessGroup& group, std::optional<int> src, MessageOptions options, int* source) {
  const auto received = group.recv_bytes(src, options);
  if (source != nullptr) *source = received.source;
  return decode(received.bytes, received.source);
}

}  // namespace lockstep
