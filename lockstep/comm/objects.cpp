#include "lockstep/comm/objects.h"

#include <nlohmann/json.hpp>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::string encode(const json& object) {
  const std::vector<uint8_t> bytes = json::to_cbor(object);
  return {bytes.begin(), bytes.end()};
}

json decode(const std::string& bytes, int source) {
  try {
    return json::from_cbor(bytes);
  } catch (const json::exception& error) {
    throw ValueError("rank " + std::to_string(source) + " sent " + std::to_string(bytes.size()) +
                     " bytes that are no object (CBOR): " + error.what());
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
