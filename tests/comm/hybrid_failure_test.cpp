// What a rank is told of a failure that another rank of a group over several machines has met.
#include "lockstep/comm/backends/hybrid_failure.h"

#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::backends {
namespace {

PeerLostError find_loss(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerLostError& error) {
    return error;
  }
}

TEST(HybridFailure, ALossKeepsWhatIsKnownOfIt) {
  for (const bool has_left : {false, true}) {
    for (const bool quotes_call : {false, true}) {
      const PeerLostError lost("barrier #1 lost rank 7", 7,
                               {.has_left = has_left, .quotes_call = quotes_call});
      const PeerLostError told = find_loss(decode_failure(encode_failure(std::make_exception_ptr(lost))));
      EXPECT_STREQ(told.what(), lost.what());
      EXPECT_EQ(told.rank(), 7);
      EXPECT_EQ(told.loss().has_left, has_left);
      EXPECT_EQ(told.loss().quotes_call, quotes_call);
    }
  }
}

TEST(HybridFailure, ALossOnAMachineKeepsWhatIsKnownOfIt) {
  const PeerLostError lost("barrier #1 lost rank 1", 1, {.has_left = true});
  const PeerLostError translated = find_loss(translate_failure(std::make_exception_ptr(lost), {4, 5}));
  EXPECT_EQ(translated.rank(), 5);
  EXPECT_TRUE(translated.loss().has_left);
}

TEST(HybridFailure, ACallIsQuotedOnce) {
  // The message has words of a quote, and quotes no call.
  const PeerLostError lost("rank 1, which has called for help, died", 1, {.has_left = true});
  const std::exception_ptr failure = std::make_exception_ptr(lost);
  const std::exception_ptr quoted = quote_loss(failure, "; rank 0 has called barrier #2");
  EXPECT_STREQ(find_loss(quoted).what(),
               "rank 1, which has called for help, died; rank 0 has called barrier #2");
  EXPECT_TRUE(find_loss(quoted).loss().quotes_call);
  EXPECT_TRUE(find_loss(quoted).loss().has_left);
  EXPECT_EQ(quote_loss(quoted, "; rank 2 has called barrier #2"), quoted);
  EXPECT_EQ(quote_loss(failure, ""), failure) << "this rank has called nothing";
}

}  // namespace
}  // namespace lockstep::backends
