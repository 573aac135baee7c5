// JSON values between ranks, by torch.distributed's names. They travel as CBOR, and nothing received is
// executed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// All block. What arrives and is no CBOR is a ValueError that names its sender; so is an object of more than
/// 500 levels, on either side.
nlohmann::json broadcast_object(const ProcessGroup& group, const nlohmann::json& object,
                                BroadcastOptions options = {});
/// By rank.
std::vector<nlohmann::json> all_gather_object(const ProcessGroup& group, const nlohmann::json& object,
                                              CollectiveOptions options = {});
/// By rank at `dst`, empty elsewhere.
std::vector<nlohmann::json> gather_object(const ProcessGroup& group, const nlohmann::json& object,
                                          GatherOptions options = {});
/// `objects`: one per rank at `src`, empty elsewhere.
nlohmann::json scatter_object(const ProcessGroup& group, const std::vector<nlohmann::json>& objects,
                              ScatterOptions options = {});
/// Sends `object` to rank `dst` of the group, which calls recv_object().
void send_object(const ProcessGroup& group, const nlohmann::json& object, int dst,
                 MessageOptions options = {});
/// From rank `src` or, without one, from any; `source`, where given, is told which.
nlohmann::json recv_object(const ProcessGroup& group, std::optional<int> src = std::nullopt,
                           MessageOptions options = {}, int* source = nullptr);

}  // namespace lockstep
