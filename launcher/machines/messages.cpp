#include "launcher/machines/messages.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "lockstep/base/json.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;

// The longest texts, in bytes.
constexpr size_t kReason = 1 << 16, kWhat = 1 << 14, kRunId = 1024, kHost = 256, kId = 64;
constexpr int kMany = 1 << 20;
constexpr uint32_t kMostEpochs = uint32_t{1} << 30U;

class Writer {
 public:
  explicit Writer(json& out) : out_(out) {}
  void text(const char* key, const std::string& value, size_t) { out_[key] = value; }
  void as_text(const std::string& value, size_t) { out_ = value; }
  template <class Number>
  void number(const char* key, Number value, Number, Number) {
    out_[key] = value;
  }
  void flag(const char* key, bool value) { out_[key] = value; }
  void seconds(const char* key, double value) { out_[key] = value; }
  template <class Element, class Describe>
  void list(const char* key, const std::vector<Element>& values, const Describe& describe_one) {
    json& array = out_[key] = json::array();
    for (const Element& value : values) {
      Writer writer(array.emplace_back());
      describe_one(value, writer);
    }
  }

 private:
  json& out_;
};

class Reader {
 public:
  explicit Reader(const json& in) : in_(in) {}
  void text(const char* key, std::string& value, size_t most) {
    if (const json* const found = find(key)) Reader(*found).as_text(value, most);
  }
  template <class Number>
  void number(const char* key, Number& value, Number least, Number most) {
    const json* const found = find(key);
    if (found == nullptr || !found->is_number_integer()) return;
    value = static_cast<Number>(std::clamp<int64_t>(found->get<int64_t>(), least, most));
  }
  void flag(const char* key, bool& value) {
    const json* const found = find(key);
    if (found != nullptr && found->is_boolean()) value = found->get<bool>();
  }
  void seconds(const char* key, double& value) {
    const json* const found = find(key);
    if (found != nullptr && found->is_number()) value = std::clamp(found->get<double>(), 0.0, 1e9);
  }
  template <class Element, class Describe>
  void list(const char* key, std::vector<Element>& values, const Describe& describe_one) {
    const json* const found = find(key);
    if (found == nullptr || !found->is_array()) return;
    for (const json& element : *found) {
      Reader reader(element);
      describe_one(values.emplace_back(), reader);
    }
  }
  void as_text(std::string& value, size_t most) {
    if (!in_.is_string()) return;
    value = in_.get<std::string>().substr(0, most);
    for (char& c : value) {
      if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
    }
  }

 private:
  const json* find(const char* key) const {
    const auto found = in_.find(key);  // the end, where it is no object
    return found == in_.end() ? nullptr : &*found;
  }
  const json& in_;
};

// The fields of each message, for a Writer or a Reader.

template <class IO>
void describe(message::Join& join, IO& io) {
  io.text("id", join.id, kId);
  io.text("run_id", join.run_id, kRunId);
  io.text("host", join.host, kHost);
  io.text("address", join.address, kId);
  io.number("store_port", join.store_port, 0, 65535);
  io.number("nproc", join.nproc, 0, 4096);
  io.number("min", join.min, 0, kMany);
  io.number("max", join.max, 0, kMany);
  io.number("node_rank", join.node_rank, -1, kMany);
  io.flag("serves", join.serves);
  io.flag("serving", join.serving);
  io.number("round", join.round, 0, 1 << 30);
  io.number("machines", join.machines, 0, kMany);
  io.number("restarts", join.restarts, 0, kMany);
  io.flag("server_is_gone", join.server_is_gone);
  io.flag("same_place", join.same_place);
  io.text("instance", join.instance, kId);
  io.flag("saved_nothing", join.saved_nothing);
  io.flag("refused", join.refused);
  io.flag("untouched", join.untouched);
  io.flag("replaces", join.replaces);
  io.flag("has_no_vote", join.has_no_vote);
  io.text("command", join.command, kHost);
}

template <class IO>
void describe(message::Ask& ask, IO& io) {
  io.text("run_id", ask.run_id, kRunId);
  io.text("instance", ask.instance, kId);
}

template <class IO>
void describe(message::Failed& failed, IO& io) {
  io.text("what", failed.what, kWhat);
  io.number("code", failed.code, 1, 255);
  io.number("refused", failed.refused, uint32_t{0}, kMostEpochs);
}

template <class IO>
void describe(message::Leaving& leaving, IO& io) {
  io.number("signal", leaving.signal, 0, 255);
}

template <class IO>
void describe(message::Leave& leave, IO& io) {
  io.number("code", leave.code, 0, 255);
  io.flag("saved_nothing", leave.saved_nothing);
}

template <class IO>
void describe(message::Quiet& quiet, IO& io) {
  io.seconds("seconds", quiet.seconds);
  io.list("ranks", quiet.ranks, [](auto& rank, auto& element) {
    auto state = static_cast<uint32_t>(rank.state);
    auto operations = static_cast<int64_t>(rank.operations);
    auto waits = rank.waits;
    auto last = rank.last_operation;
    element.number("state", state, uint32_t{0}, static_cast<uint32_t>(shm::RankState::exited));
    element.number("operations", operations, int64_t{0}, std::numeric_limits<int64_t>::max());
    element.flag("waits", waits);
    element.text("last", last, kHost);
    if constexpr (!std::is_const_v<std::remove_reference_t<decltype(rank)>>) {
      rank.state = static_cast<shm::RankState>(state);
      rank.operations = static_cast<uint64_t>(operations);
      rank.waits = waits;
      rank.last_operation = last;
    }
  });
}

constexpr int kMostRanks = 1 << 30;

template <class IO>
void describe(message::Died& died, IO& io) {
  io.number("rank", died.rank, 0, kMostRanks);
  io.text("what", died.what, kWhat);
  io.number("code", died.code, 1, 255);
}

template <class IO>
void describe_heirs(std::vector<message::Heir>& heirs, IO& io) {
  io.list("heirs", heirs, [](auto& heir, auto& element) {
    element.text("id", heir.id, kId);
    element.text("address", heir.address, kId);
  });
}

template <class IO>
void describe(message::Replace& replace, IO& io) {
  io.number("rank", replace.rank, 0, kMostRanks);
  io.number("epoch", replace.epoch, uint32_t{0}, kMostEpochs);
  io.text("what", replace.what, kWhat);
  io.number("code", replace.code, 1, 255);
  io.flag("machine", replace.machine);
  describe_heirs(replace.heirs, io);
}

template <class IO>
void describe(message::Kept& kept, IO& io) {
  io.number("rank", kept.rank, 0, kMostRanks);
  io.text("reason", kept.reason, kReason);
}

template <class IO>
void describe(message::Probed& probed, IO& io) {
  io.list("unreached", probed.unreached,
          [](auto& machine, auto& element) { element.number("machine", machine, 0, kMany); });
}

template <class IO>
void describe(message::Probe& probe, IO& io) {
  io.list("machines", probe.machines, [](auto& machine, auto& element) {
    element.number("machine", machine.group_rank, 0, kMany);
    element.text("address", machine.address, kId);
    element.number("port", machine.port, 0, 65535);
  });
}

template <class IO>
void describe(message::Hang& hang, IO& io) {
  io.text("text", hang.text, kReason);
  io.flag("is_culprit", hang.is_culprit);
}

template <class IO>
void describe(message::Status& status, IO& io) {
  io.list("here", status.here, [](auto& host, auto& element) { element.as_text(host, kHost); });
  io.number("least", status.least, 0, kMany);
  io.number("most", status.most, 0, kMany);
  io.number("count", status.count, 0, kMany);
  io.list("missing", status.missing, [](auto& number, auto& element) { element.as_text(number, 16); });
  io.number("ending", status.ending, 0, kMany);
}

template <class IO>
void describe(message::Start& start, IO& io) {
  io.number("round", start.round, 0, 1 << 30);
  io.number("restarts", start.restarts, 0, kMany);
  io.number("group_rank", start.group_rank, 0, kMany);
  io.number("groups", start.groups, 1, kMany);
  io.number("first_rank", start.first_rank, 0, 1 << 30);
  io.number("world_size", start.world_size, 1, 1 << 30);
  io.text("master_addr", start.master_addr, kId);
  io.number("master_port", start.master_port, uint16_t{0}, uint16_t{65535});
  io.text("instance", start.instance, kId);
  describe_heirs(start.heirs, io);
  io.text("warning", start.warning, kReason);
  io.number("epoch", start.epoch, uint32_t{0}, kMostEpochs);
  io.text("lost", start.lost, kWhat);
  io.flag("has_no_vote", start.has_no_vote);
}

template <class IO>
void describe(message::Spare& spare, IO& io) {
  io.text("reason", spare.reason, kReason);
  io.text("instance", spare.instance, kId);
  describe_heirs(spare.heirs, io);
}

template <class IO>
void describe(message::End& end, IO& io) {
  io.text("reason", end.reason, kReason);
  io.number("restarts", end.restarts, 0, kMany);
  io.flag("saves", end.saves);
}

template <class IO>
void describe(message::Over& over, IO& io) {
  io.text("reason", over.reason, kReason);
  io.number("code", over.code, 0, 255);
  io.flag("asked", over.asked);
}

template <class IO>
void describe_reason(std::string& reason, IO& io) {
  io.text("reason", reason, kReason);
}
template <class IO>
void describe(message::Refused& refused, IO& io) {
  describe_reason(refused.reason, io);
}
template <class IO>
void describe(message::Dropped& dropped, IO& io) {
  describe_reason(dropped.reason, io);
}
template <class IO>
void describe(message::Moved& moved, IO& io) {
  describe_reason(moved.reason, io);
  io.flag("leaves", moved.leaves);
  io.text("to", moved.to, kHost);
}

template <class Empty, class IO>
void describe(Empty&, IO&) {
  static_assert(std::is_empty_v<Empty>);
}

template <size_t I = 0>
std::optional<Message> parse_as(std::string_view type, const json& object) {
  if constexpr (I == std::variant_size_v<Message>) {
    return std::nullopt;
  } else {
    using This = std::variant_alternative_t<I, Message>;
    if (type != This::kType) return parse_as<I + 1>(type, object);
    This message;
    Reader reader(object);
    describe(message, reader);
    return message;
  }
}

}  // namespace

std::string to_text(const Message& message) {
  json object;
  std::visit(
      [&](auto copy) {
        object["type"] = decltype(copy)::kType;
        Writer writer(object);
        describe(copy, writer);
      },
      message);
  return dump_json(object, {.ensure_ascii = true, .replace_invalid_utf8 = true});
}

std::optional<Message> parse_message(std::string_view text) {
  const json object = parse_json(text);
  if (!object.is_object()) return std::nullopt;
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) return std::nullopt;
  return parse_as(type->get_ref<const std::string&>(), object);
}

}  // namespace lockstep::launcher
