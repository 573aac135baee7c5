#include "lockstep/comm/uplink/wire_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace lockstep::uplink {
namespace {

constexpr size_t kPieceBytes = size_t{512} << 10;
/// Up to here every machine sends its sums to every other: one trip instead of two.
constexpr size_t kOneTripBytes = size_t{16} << 10;

size_t count_elements(const std::vector<Elements>& parts) {
  size_t count = 0;
  for (const Elements& part : parts) count += part.count;
  return count;
}

/// Whether results are sent back where the bytes are many: the same for all calls of a group. Two machines that send each other
/// one sum do not need it.
bool sends_results(const SumPlan& plan) { return plan.leaves().size() > 2; }

/// A tensor has so many shares. Equal ones of up to 10 machines are whole.
constexpr size_t kShares = 5040;

/// How many shares a machine may own, where no cable is to carry more than `load` shares of it, each way. None: first > last.
struct Range {
  size_t first = 0, last = kShares;
};
Range find_range(const SumPlan& plan, int machine, size_t load) {
  constexpr Range kNone{1, 0};
  const auto others = static_cast<size_t>(plan.machines() - 1);
  const size_t own = plan.leaves_of(machine).size(), theirs = plan.leaves().size() - own;
  Range range;
  // It receives all sums of what it owns, and the results of the rest.
  if (load < kShares) return kNone;
  if (theirs > 1) range.last = std::min(range.last, (load - kShares) / (theirs - 1));
  // It sends its sums of what others own, and its results to all of them.
  if (own < others) {
    if (load < own * kShares) return kNone;
    range.last = std::min(range.last, (load - own * kShares) / (others - own));
  } else if (own == others) {
    if (load < own * kShares) return kNone;
  } else if (load < own * kShares) {
    range.first = (own * kShares - load + own - others - 1) / (own - others);
  }
  return range;
}

/// By machine, how many shares it owns, so that the busiest cable carries as little as possible: who has more sums to send owns
/// more. Whole numbers: all machines find the same.
std::vector<size_t> share_out(const SumPlan& plan) {
  const auto machines = static_cast<size_t>(plan.machines());
  std::vector<Range> ranges(machines);
  const auto fits = [&](size_t load) {
    size_t least = 0, most = 0;
    for (size_t m = 0; m < machines; ++m) {
      ranges[m] = find_range(plan, static_cast<int>(m), load);
      if (ranges[m].first > ranges[m].last) return false;
      least += ranges[m].first;
      most += ranges[m].last;
    }
    return least <= kShares && most >= kShares;
  };
  size_t little = 0, enough = kShares * plan.leaves().size();
  while (little + 1 < enough) {
    const size_t load = (little + enough) / 2;
    (fits(load) ? enough : little) = load;
  }
  fits(enough);
  std::vector<size_t> shares;
  size_t left = kShares;
  for (const Range& range : ranges) left -= shares.emplace_back(range.first);
  // What may lie anywhere, as evenly as it can.
  for (size_t m = 0; left > 0; m = (m + 1) % machines) {
    const size_t more =
        std::min({ranges[m].last - shares[m], left, std::max<size_t>(1, left / (machines - m))});
    shares[m] += more;
    left -= more;
  }
  return shares;
}

/// By machine, what it owns of `all`.
std::vector<std::vector<Elements>> cut_by_shares(const Elements& all, const std::vector<size_t>& shares) {
  std::vector<std::vector<Elements>> owned;
  size_t before = 0;
  for (const size_t share : shares) {
    const size_t begin = all.count * before / kShares, end = all.count * (before + share) / kShares;
    owned.push_back({{all.first + begin, end - begin}});
    before += share;
  }
  return owned;
}

std::vector<Elements> cut_pieces(const Accumulation& accumulation, size_t count) {
  const size_t most = std::max<size_t>(1, kPieceBytes / accumulation.element_bytes());
  std::vector<Elements> pieces;
  for (size_t first = 0; first < count; first += most)
    pieces.push_back({first, std::min(most, count - first)});
  if (pieces.empty()) pieces.push_back({0, 0});
  return pieces;
}

/// What `machine` sends to `other` before anything is combined.
size_t count_partial_bytes(const Accumulation& accumulation, const SumPlan& plan, const Piece& piece,
                           int machine, int other) {
  return plan.leaves_of(machine).size() * count_elements(piece.owned[static_cast<size_t>(other)]) *
         accumulation.packed_bytes();
}

/// Do all partial sums of the only piece travel in the frames? The answer is the same on all machines.
bool fits_frames(const Accumulation& accumulation, const SumPlan& plan, const std::vector<Piece>& pieces) {
  if (pieces.size() != 1) return false;
  for (int from = 0; from < plan.machines(); ++from) {
    for (int to = 0; to < plan.machines(); ++to) {
      if (from != to && count_partial_bytes(accumulation, plan, pieces[0], from, to) > kFramePayload)
        return false;
    }
  }
  return true;
}

/// One piece under way.
class PieceInFlight {
 public:
  PieceInFlight(Wire& wire, const Accumulation& accumulation, const SumPlan& plan, const Piece& piece,
                size_t number, MachineData& data)
      : wire_(wire),
        accumulation_(accumulation),
        plan_(plan),
        piece_(piece),
        number_(number),
        data_(data),
        partials_(static_cast<size_t>(plan.machines())),
        results_(static_cast<size_t>(plan.machines())),
        arriving_(static_cast<size_t>(plan.machines())) {}

  /// What this machine sends to `other`: its leaves' sums of what that one owns, one after another.
  Buffer make_partials(int other) const {
    const size_t leaves = plan_.leaves_of(wire_.machine()).size();
    const bool lies_so = leaves == 1 && owned(other).size() == 1 && !accumulation_.is_narrowed();
    if (lies_so) return data_.partial(number_, 0, owned(other)[0]);
    const Buffer buffer =
        wire_.take_buffer(count_partial_bytes(accumulation_, plan_, piece_, wire_.machine(), other));
    std::byte* to = buffer.data();
    for (size_t leaf = 0; leaf < leaves; ++leaf) {
      for (const Elements& part : owned(other)) {
        accumulation_.pack(data_.partial(number_, leaf, part).data(), to, part.count);
        to += part.count * accumulation_.packed_bytes();
      }
    }
    return buffer;
  }

  void send_partials() {
    each_other([&](int other) {
      Buffer& arriving = partials_[static_cast<size_t>(other)];
      arriving = wire_.take_buffer(count_partial_bytes(accumulation_, plan_, piece_, other, wire_.machine()));
      arriving_[static_cast<size_t>(other)] = wire_.recv(other, arriving);
    });
    each_other([&](int other) { wire_.send(other, make_partials(other)); });
    partials_[static_cast<size_t>(wire_.machine())] = make_partials(wire_.machine());
    sent_ = wire_.sent();
  }
  /// They came in the frames.
  void take_partials(std::vector<Buffer> arrived) {
    partials_ = std::move(arrived);
    partials_[static_cast<size_t>(wire_.machine())] = make_partials(wire_.machine());
    are_there_ = true;
  }

  /// Combines what this machine owns, and begins to send it back.
  void combine(const Deadline& deadline) {
    if (!are_there_) {
      each_other([&](int other) { wire_.await(arriving_[static_cast<size_t>(other)], deadline); });
    }
    const size_t count = count_elements(owned(wire_.machine()));
    const bool is_in_place = owned(wire_.machine()).size() == 1;
    const Buffer result = is_in_place ? data_.place(number_, owned(wire_.machine())[0])
                                      : wire_.take_buffer(count * accumulation_.element_bytes());
    // The results may lie where this machine's sums are, which must have left.
    if (is_in_place) wire_.settle(sent_, deadline);
    if (accumulation_.is_narrowed()) unpack_partials();
    add_up(count, result);
    partials_.clear();
    Buffer packed = result;
    if (rounds_results()) {
      packed = wire_.take_buffer(count * accumulation_.packed_result_bytes());
      accumulation_.pack(result.data(), packed.data(), count);
      accumulation_.unpack(packed.data(), result.data(), count);
    }
    if (piece_.returns) {
      each_other([&](int other) {
        Buffer& arriving = results_[static_cast<size_t>(other)];
        arriving = wire_.take_buffer(count_elements(owned(other)) * accumulation_.packed_result_bytes());
        arriving_[static_cast<size_t>(other)] = wire_.recv(other, arriving);
      });
      each_other([&](int other) { wire_.send(other, packed); });
    }
    if (!is_in_place) store(wire_.machine(), result);
  }

  /// Takes what the others have combined.
  void finish(const Deadline& deadline) {
    if (piece_.returns) {
      each_other([&](int other) {
        wire_.await(arriving_[static_cast<size_t>(other)], deadline);
        store(other, unpack_results(other));
      });
      results_.clear();
    }
    data_.finish(number_);
  }

 private:
  const std::vector<Elements>& owned(int machine) const { return piece_.owned[static_cast<size_t>(machine)]; }
  template <class Call>
  void each_other(const Call& call) const {
    for (int m = 0; m < plan_.machines(); ++m) {
      if (m != wire_.machine()) call(m);
    }
  }
  /// Results are rounded whether they are sent or not: how many elements a call has makes no difference.
  bool rounds_results() const { return sends_results(plan_) && accumulation_.narrows_results(); }
  Buffer unpack_results(int owner) const {
    const Buffer& arrived = results_[static_cast<size_t>(owner)];
    if (!rounds_results()) return arrived;
    const size_t count = count_elements(owned(owner));
    const Buffer results = wire_.take_buffer(count * accumulation_.element_bytes());
    accumulation_.unpack(arrived.data(), results.data(), count);
    return results;
  }
  /// This machine's own, too: then all machines add the same numbers.
  void unpack_partials() {
    const size_t count = count_elements(owned(wire_.machine()));
    for (int m = 0; m < plan_.machines(); ++m) {
      Buffer& packed = partials_[static_cast<size_t>(m)];
      const size_t sums = plan_.leaves_of(m).size() * count;
      const Buffer partials = wire_.take_buffer(sums * accumulation_.partial_bytes());
      accumulation_.unpack(packed.data(), partials.data(), sums);
      packed = partials;
    }
  }
  /// The sum of all leaves, in the order of the tree. What came from other machines is overwritten; what is this machine's own
  /// is only read, since it may be on its way.
  void add_up(size_t count, const Buffer& result) {
    struct Sum {
      const std::byte* data;
      std::byte* room;  // null: this machine's own
    };
    std::vector<size_t> used(partials_.size());
    std::vector<Sum> sums;  // by leaf
    for (const Leaf& leaf : plan_.leaves()) {
      const auto machine = static_cast<size_t>(leaf.machine);
      std::byte* const data =
          partials_[machine].data() + used[machine]++ * count * accumulation_.partial_bytes();
      sums.push_back({data, leaf.machine == wire_.machine() ? nullptr : data});
    }
    // A sum of two needs no room between: nothing else is read after it.
    const bool goes_straight = sums.size() == 2 && !accumulation_.is_widened();
    std::vector<Buffer> more;
    const auto find_room = [&](const Sum& to, const Sum& from) {
      if (goes_straight) return result.data();
      if (to.room != nullptr) return to.room;
      if (from.room != nullptr) return from.room;
      return more.emplace_back(wire_.take_buffer(count * accumulation_.partial_bytes())).data();
    };
    plan_.add_up([&](size_t to, size_t from) {
      std::byte* const room = find_room(sums[to], sums[from]);
      accumulation_.add(sums[to].data, sums[from].data, room, count);
      sums[to] = {room, room};
    });
    accumulation_.finish(sums[0].room, result.data(), count);
  }
  void store(int owner, const Buffer& results) {
    const std::byte* from = results.data();
    for (const Elements& part : owned(owner)) {
      const Buffer place = data_.place(number_, part);
      std::memcpy(place.data(), from, place.bytes);
      from += place.bytes;
    }
  }

  Wire& wire_;
  const Accumulation& accumulation_;
  const SumPlan& plan_;
  const Piece& piece_;
  size_t number_;
  MachineData& data_;
  std::vector<Buffer> partials_, results_;  // by machine that sends
  std::vector<size_t> arriving_;            // its message
  size_t sent_ = 0;                         // messages of the call, with this piece's sums
  bool are_there_ = false;
};

}  // namespace

std::vector<Piece> plan_all_reduce(const Accumulation& accumulation, const SumPlan& plan, size_t count) {
  const auto machines = static_cast<size_t>(plan.machines());
  const std::vector<Elements> cut = cut_pieces(accumulation, count);
  // Between two machines a second trip is worth its bytes only where it begins before the first one ends.
  const bool is_short = machines == 2
                            ? cut.size() == 1
                            : (machines - 1) * count * accumulation.element_bytes() <= kOneTripBytes;
  const bool one_trip = is_short || !sends_results(plan);
  const std::vector<size_t> shares = one_trip ? std::vector<size_t>() : share_out(plan);
  std::vector<Piece> pieces;
  for (const Elements& all : cut) {
    Piece& piece = pieces.emplace_back();
    piece.all = all;
    piece.returns = !one_trip;
    piece.owned = one_trip ? std::vector<std::vector<Elements>>(machines, {all}) : cut_by_shares(all, shares);
  }
  return pieces;
}

std::vector<Piece> plan_reduce(const Accumulation& accumulation, const SumPlan& plan, size_t count,
                               int machine) {
  std::vector<Piece> pieces;
  for (const Elements& all : cut_pieces(accumulation, count)) {
    Piece& piece = pieces.emplace_back();
    piece.all = all;
    piece.owned.resize(static_cast<size_t>(plan.machines()));
    piece.owned[static_cast<size_t>(machine)] = {all};
  }
  return pieces;
}

std::vector<Piece> plan_reduce_scatter(const SumPlan& plan, size_t count) {
  Piece piece{.all = {0, static_cast<size_t>(plan.ranks()) * count}, .owned = {}};
  for (int m = 0; m < plan.machines(); ++m) {
    std::vector<Elements>& owned = piece.owned.emplace_back();
    for (const int rank : plan.ranks_of(m)) owned.push_back({static_cast<size_t>(rank) * count, count});
  }
  return {piece};
}

uint64_t count_sent_bytes(const Accumulation& accumulation, const SumPlan& plan,
                          const std::vector<Piece>& pieces, int machine) {
  const auto others = static_cast<uint64_t>(plan.machines() - 1);
  uint64_t bytes = others * (kFrameBytes + kFramePayload);
  const bool in_frames = fits_frames(accumulation, plan, pieces);
  for (const Piece& piece : pieces) {
    for (int other = 0; other < plan.machines(); ++other) {
      if (other != machine && !in_frames)
        bytes += count_partial_bytes(accumulation, plan, piece, machine, other);
    }
    if (piece.returns) {
      bytes += others * count_elements(piece.owned[static_cast<size_t>(machine)]) *
               accumulation.packed_result_bytes();
    }
  }
  return bytes;
}

void reduce_over(Wire& wire, const Call& call, const Accumulation& accumulation, const SumPlan& plan,
                 const std::vector<Piece>& pieces, MachineData& data, const Deadline& deadline) {
  std::vector<PieceInFlight> flights;
  flights.reserve(pieces.size());
  for (const Piece& piece : pieces)
    flights.emplace_back(wire, accumulation, plan, piece, flights.size(), data);
  if (fits_frames(accumulation, plan, pieces)) {
    data.gather(0);
    std::vector<Buffer> payloads(static_cast<size_t>(plan.machines()));
    for (int m = 0; m < plan.machines(); ++m) {
      if (m != wire.machine()) payloads[static_cast<size_t>(m)] = flights[0].make_partials(m);
    }
    wire.begin(call, payloads);
    flights[0].take_partials(wire.agree(deadline));
    flights[0].combine(deadline);
    flights[0].finish(deadline);
    wire.finish(deadline);
    return;
  }
  wire.begin(call);
  const size_t ahead = wire.pieces_ahead();
  // Piece p is sent, p - ahead is combined, p - 2 ahead comes back: on all machines in this order, which is that of the
  // messages between two of them.
  const size_t count = flights.size();
  std::vector<size_t> sent;  // messages, by the number of turns before
  for (size_t p = 0; p < count + 2 * ahead; ++p) {
    if (p < count) {
      data.gather(p);
      flights[p].send_partials();
    }
    if (p >= ahead && p - ahead < count) flights[p - ahead].combine(deadline);
    sent.push_back(wire.sent());
    if (p < 2 * ahead || p - 2 * ahead >= count) continue;
    flights[p - 2 * ahead].finish(deadline);
    // Who has sent results of that piece, or its sums of a later one, has room for all that was sent until then.
    wire.settle(sent[p - 2 * ahead], deadline);
  }
  wire.finish(deadline);
}

}  // namespace lockstep::uplink
