// Why a group over several machines is lost: as text, since it goes through a store and through shared memory.
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace lockstep::backends {

/// Text from which decode_failure() makes the error again on another rank.
std::string encode_failure(const std::exception_ptr& failure);
/// Returns null if the text is none of encode_failure().
std::exception_ptr decode_failure(const std::string& text);

/// An error of the ranks of one machine, as all ranks of the group understand it. `ranks`: those of the machine, by their
/// numbers there.
std::exception_ptr translate_failure(const std::exception_ptr& failure, const std::vector<int>& ranks);

/// `failure`; if it is a MismatchError of what ranks of one machine have called as parts of something, it also says what
/// `rank` has called.
std::exception_ptr quote_call(const std::exception_ptr& failure, int rank, const std::string& call);
/// `failure`; if it is a PeerLostError that quotes no call, also with `during`: what this rank has called, or empty.
std::exception_ptr quote_loss(const std::exception_ptr& failure, const std::string& during);

}  // namespace lockstep::backends
