#include "lockstep/job/meeting_point.h"

#include <gtest/gtest.h>

#include "lockstep/base/env.h"

namespace lockstep::job {
namespace {

TEST(MeetingPointTest, FirstHostOfSlurmsLists) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[01-03,5],x"), "node01");
  EXPECT_EQ(first_host("rack[1-2]n[03,5]-ib"), "rack1n03-ib");
  EXPECT_EQ(first_host("node[4"), "node4");
}

TEST(MeetingPointTest, OpenMpiTellsWhereMpirunIs) {
  EXPECT_FALSE(open_mpi_meeting_point());
  for (const char* uri :
       {"1579876352.0;tcp://10.77.0.1:33507", "1579876352.0;tcp://10.77.0.1,192.168.0.1:33507"}) {
    env::set("OMPI_MCA_orte_hnp_uri", uri);
    const auto point = open_mpi_meeting_point();
    ASSERT_TRUE(point);
    EXPECT_EQ(point->host, "10.77.0.1");
    EXPECT_EQ(point->port, 20000 + 24107 % 10000);
  }
  env::set("OMPI_MCA_orte_hnp_uri", std::nullopt);
}

}  // namespace
}  // namespace lockstep::job
