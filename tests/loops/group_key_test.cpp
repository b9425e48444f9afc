// Equal keys for groups that have the same loops wherever they stand; another key for whatever changes the loops.
#include "loops/group_key.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

std::string key_of(std::string_view lines) { return group_key(parse_graph("stepc.graph 1\n" + std::string(lines))); }

constexpr std::string_view kGroup = R"(input %0: f32[4, 8] = captured "0"
input %1: f32[8] = captured "1"
%2: f32[4, 8] = mul(%0, %1) | forward "layer.0"
%3: f32[4] = sum(%2) {dims=[1], keepdim=false} | forward "layer.0"
return %3
)";

std::string with(std::string_view what, std::string_view instead) {
  std::string text(kGroup);
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return key_of(text.replace(at, what.size(), instead));
}

TEST(GroupKey, IsTheSameWhereverAGroupStands) {
  EXPECT_EQ(with("layer.0", "layer.7"), key_of(kGroup));
  EXPECT_EQ(with("captured \"1\"", "captured \"x\""), key_of(kGroup));
}

TEST(GroupKey, TellsApartWhatHasOtherLoops) {
  const std::string key = key_of(kGroup);
  EXPECT_NE(with("mul(%0, %1)", "add(%0, %1)"), key) << "an op";
  EXPECT_NE(with("mul(%0, %1)", "mul(%1, %0)"), key) << "what it reads";
  EXPECT_NE(with("keepdim=false", "keepdim=true"), key) << "an attribute";
  EXPECT_NE(with("input %1: f32[8]", "input %1: f32[1]"), key) << "a shape";
  EXPECT_NE(with("input %1: f32[8]", "input %1: bf16[8]"), key) << "a type";
  EXPECT_NE(with("input %1: f32[8]", "input %1: f32[8](2)"), key) << "how an input lies";
  EXPECT_NE(with("return %3", "return %3(2)"), key) << "how an output lies";
  EXPECT_NE(with("return %3", "return %2"), key) << "what leaves it";
}

}  // namespace
}  // namespace stepc
