// What `lockstep bench all-reduce --machines` is asked for, as numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

/// "2x3" (2 machines of 3 ranks) and "2+3" (machines of 2 and of 3 ranks) as ranks by machine. Throws ValueError naming the
/// text: at least 2 machines, at most 16, and 64 ranks in all.
std::vector<int> parse_layout(const std::string& text);

/// "1gbit", "100mbit", "500kbit" as bits a second; "" and "0": no limit, 0. Throws ValueError naming the text.
uint64_t parse_rate(const std::string& text);

/// "0", "1", "0.5", "20": milliseconds there and back, as nanoseconds one way. Throws ValueError naming the text.
int64_t parse_rtt(const std::string& text);

/// All of the command line at once, and that each uplink is gloo or ucx. Throws ValueError naming what is wrong.
void check_network_options(const std::vector<std::string>& layouts, const std::vector<std::string>& rtts,
                           const std::string& rate, const std::vector<std::string>& uplinks);

}  // namespace lockstep::bench
