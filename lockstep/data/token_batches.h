// Batches of sentences with about the same number of tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Sample numbers as batches of samples of similar length: in no batch is (number of samples) x (length of its longest)
/// above `max_tokens`, unless it holds one sample only. fairseq's --max-tokens: the batches stay the same from epoch
/// to epoch, and what is shuffled is their order. Throws ValueError for max_tokens below 1. Pure.
std::vector<std::vector<int64_t>> batches_by_tokens(const std::vector<int64_t>& lengths, int64_t max_tokens);

}  // namespace lockstep
