#include "launcher/machines/wire.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "lockstep/job/listener.h"

namespace lockstep::launcher {
namespace {

struct Pair {
  UniqueFd a, b;
};

Pair connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

using Words = std::vector<std::string>;

TEST(WireTest, AMessageDoesNotWaitForTheOneBefore) {
  const job::Listener listener = job::listen_on_loopback(0);
  UniqueFd client = job::connect_to(job::local_address(listener.fd.get()), 5);
  const Wire server(UniqueFd(::accept(listener.fd.get(), nullptr, nullptr)), Wire::Side::server, "secret");
  int on = 0;
  socklen_t size = sizeof on;
  ASSERT_EQ(::getsockopt(server.fd(), IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
  EXPECT_TRUE(on);
}

TEST(WireTest, MessagesPassBothWays) {
  auto [a, b] = connected();
  Wire client(std::move(a), Wire::Side::client, "secret"), server(std::move(b), Wire::Side::server, "secret");
  client.send("one");
  client.send("two");
  EXPECT_TRUE(client.receive().empty());  // the greeting; now what waited leaves
  EXPECT_EQ(server.receive(), (Words{"one", "two"}));
  EXPECT_TRUE(server.authenticated());
  server.send("three");
  EXPECT_EQ(client.receive(), Words{"three"});
  client.send(std::string(100000, 'x'));
  EXPECT_EQ(server.receive(), Words{std::string(100000, 'x')});
}

TEST(WireTest, AnotherSecretIsNoticed) {
  auto [a, b] = connected();
  Wire client(std::move(a), Wire::Side::client, "secret"), server(std::move(b), Wire::Side::server, "Secret");
  client.send("one");
  client.receive();
  EXPECT_TRUE(server.receive().empty());
  EXPECT_EQ(server.state(), Wire::State::forged);
  EXPECT_FALSE(server.authenticated());
}

TEST(WireTest, FramesCannotBePlayedBack) {
  // What a client once sent, byte for byte, to another server with the same secret.
  auto [a, b] = connected();
  Wire client(std::move(a), Wire::Side::client, "secret");
  auto [c, d] = connected();
  Wire first(std::move(c), Wire::Side::server, "secret");
  char bytes[4096];
  const auto pass = [&](int from, int to) {
    const ssize_t size = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (size > 0) {
      EXPECT_EQ(::send(to, bytes, static_cast<size_t>(size), 0), size);
    }
    return std::string(bytes, size > 0 ? static_cast<size_t>(size) : 0);
  };
  pass(d.get(), b.get());
  client.send("leave");
  client.receive();
  const std::string heard = pass(b.get(), d.get());
  EXPECT_EQ(first.receive(), Words{"leave"});
  auto [e, f] = connected();
  Wire second(std::move(e), Wire::Side::server, "secret");
  ASSERT_EQ(::send(f.get(), heard.data(), heard.size(), 0), static_cast<ssize_t>(heard.size()));
  EXPECT_TRUE(second.receive().empty());
  EXPECT_EQ(second.state(), Wire::State::forged);
}

TEST(WireTest, OtherProtocolsAndEndsAreTold) {
  const Words strangers = {"GET / HTTP/1.1\r\n\r\n", std::string("\x00\x3c\x85\xf7\xce", 5), "L\n"};
  for (const std::string& bytes : strangers) {
    auto [a, b] = connected();
    Wire server(std::move(a), Wire::Side::server, "");
    ASSERT_GT(::send(b.get(), bytes.data(), bytes.size(), 0), 0);
    EXPECT_TRUE(server.receive().empty());
    EXPECT_EQ(server.state(), Wire::State::foreign);
  }
  auto [a, b] = connected();
  Wire server(std::move(a), Wire::Side::server, "");
  b.reset();
  server.receive();
  EXPECT_EQ(server.state(), Wire::State::closed);
}

TEST(WireTest, RandomBytesAreRefused) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    auto [a, b] = connected();
    Wire server(std::move(a), Wire::Side::server, "secret");
    std::string bytes = round % 2 == 0 ? "" : "LOCKRUN1";
    const size_t size = random() % 3000;
    while (bytes.size() < size) bytes += static_cast<char>(random());
    if (!bytes.empty()) {
      ASSERT_GT(::send(b.get(), bytes.data(), bytes.size(), 0), 0);
    }
    b.reset();
    EXPECT_TRUE(server.receive().empty());
    EXPECT_NE(server.state(), Wire::State::open);
  }
}

}  // namespace
}  // namespace lockstep::launcher
