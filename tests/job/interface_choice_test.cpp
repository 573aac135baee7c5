#include "lockstep/job/interface_choice.h"

#include <gtest/gtest.h>

namespace lockstep::job {
namespace {

using Names = std::vector<std::string>;
const Names kHere = {"lo", "docker0", "eth0", "eth1", "ib0"};

TEST(InterfaceChoiceTest, AListNamesThemInOrderOfPreference) {
  EXPECT_EQ(allowed_interfaces("eth1", kHere), Names{"eth1"});
  EXPECT_EQ(allowed_interfaces("ib7,ib0,eth0", kHere), (Names{"ib0", "eth0"}));
  EXPECT_EQ(allowed_interfaces("=eth0", kHere), Names{"eth0"});
  EXPECT_EQ(allowed_interfaces("=eth", kHere), Names{}) << "names are whole";
  EXPECT_EQ(allowed_interfaces("eth", kHere), Names{}) << "as Gloo reads them";
  EXPECT_EQ(allowed_interfaces(",eth0,,eth0,", kHere), Names{"eth0"});
}

TEST(InterfaceChoiceTest, ACaretExcludes) {
  EXPECT_EQ(allowed_interfaces("^docker0,lo", kHere), (Names{"eth0", "eth1", "ib0"}));
  EXPECT_EQ(allowed_interfaces("^docker,lo,eth", kHere), Names{"ib0"}) << "all that begin so";
  EXPECT_EQ(allowed_interfaces("^=eth,lo", kHere), (Names{"docker0", "eth0", "eth1", "ib0"}));
  EXPECT_EQ(allowed_interfaces("^", kHere), kHere);
}

TEST(InterfaceChoiceTest, GlooKnowsNamesOnly) {
  EXPECT_TRUE(is_plain_interface_list("eth0,eth1"));
  EXPECT_TRUE(is_plain_interface_list(""));
  EXPECT_FALSE(is_plain_interface_list("^lo"));
  EXPECT_FALSE(is_plain_interface_list("=eth0"));
}

}  // namespace
}  // namespace lockstep::job
