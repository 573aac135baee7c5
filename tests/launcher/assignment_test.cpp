#include "launcher/machines/assignment.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using Words = std::vector<std::string>;

TEST(AssignmentTest, ArrivesAsItWasSent) {
  Assignment sent;
  sent.arguments = {"-H", "a:1,b:2", "./program", "two words", "\xff\xfe not UTF-8", ""};
  sent.environment = {"A=1", "B=x\ny"};
  sent.directory = "/some where";
  sent.place = {3, 2, "10.0.0.1", 4711, 5};
  sent.secret = "0123456789";
  sent.prefix = "on";
  const std::string bytes = to_bytes(sent);
  const size_t end = bytes.find('\n');
  EXPECT_EQ(std::stoul(bytes.substr(0, end)), bytes.size() - end - 1);
  const Assignment got = parse_assignment(std::string_view(bytes).substr(end + 1));
  EXPECT_EQ(got.arguments, sent.arguments);
  EXPECT_EQ(got.environment, sent.environment);
  EXPECT_EQ(got.directory, sent.directory);
  EXPECT_EQ((std::tuple{got.place.nodes, got.place.node_rank, got.place.slots}), (std::tuple{3, 2, 5}));
  EXPECT_EQ((std::tuple{got.place.master_addr, got.place.master_port}),
            (std::tuple{std::string("10.0.0.1"), uint16_t{4711}}));
  EXPECT_EQ((std::tuple{got.secret, got.prefix}), (std::tuple{sent.secret, sent.prefix}));
}

TEST(AssignmentTest, AnythingElseIsRefused) {
  EXPECT_THROW(parse_assignment(""), ValueError);
  EXPECT_THROW(parse_assignment("\x80"), ValueError);
  EXPECT_THROW(parse_assignment("rubbish"), ValueError);
}

TEST(AssignmentTest, WhatBelongsToALoginStays) {
  EXPECT_EQ(environment_to_send({"PATH=/bin", "HOME=/root", "SSH_AUTH_SOCK=x", "PET_ROLE=a", "TMPDIR=/t",
                                 "LOCKSTEP_SEGMENT_FD=5", "LOCKSTEP_BACKEND=gloo"}),
            (Words{"PATH=/bin", "PET_ROLE=a", "LOCKSTEP_BACKEND=gloo"}));
}

TEST(RemoteCommandTest, IsSshThatAsksNothing) {
  NodeOptions nodes;
  EXPECT_EQ(remote_command(nodes, "", {"b"}, "/opt/lockrun"),
            (Words{"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "--", "b",
                   "exec /opt/lockrun --assigned"}));
  nodes.ssh_port = 2222;
  nodes.ssh_identity = "key";
  EXPECT_EQ(remote_command(nodes, "", {"me@b"}, "/my programs/lockrun"),
            (Words{"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-p", "2222", "-i", "key", "--",
                   "me@b", "exec '/my programs/lockrun' --assigned"}));
  EXPECT_EQ(remote_command(nodes, "kubectl exec -i", {"pod"}, "/l"),
            (Words{"kubectl", "exec", "-i", "pod", "exec /l --assigned"}));
}

}  // namespace
}  // namespace lockstep::launcher
