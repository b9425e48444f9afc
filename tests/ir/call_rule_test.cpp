#include "ir/call_rule.h"

#include <gtest/gtest.h>

#include "ir/trace.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(DimNames, RoundTrip) {
  for (const char* text :
       {"m k, k n -> m n; k: sum", "b _ -> b _", "b s d, d,  -> b s d", "a b -> a, b; b: max, a: min", " -> "}) {
    const DimNames dims = parse_dim_names(text);
    EXPECT_EQ(parse_dim_names(to_text(dims)), dims) << text;
  }
  const DimNames dims = parse_dim_names("m  k,k n->m n ;k:sum");
  EXPECT_EQ(to_text(dims), "m k, k n -> m n; k: sum");
  EXPECT_EQ(dims.operands[1], DimNames::Names({"k", "n"}));
}

TEST(DimNames, WhatCannotBeSplitSoIsRefused) {
  const auto fails = [](const char* text, const char* why) { EXPECT_USER_ERROR(parse_dim_names(text), why); };
  fails("m k", "'m k' has no '->'");
  fails("m k -> m",
        "'k' is missing on a result: say how its parts are combined, \"; k: sum\" (max, min), or write '_'");
  fails("m -> m n", "'n' names a result's dimension and no operand's");
  fails("m m -> m", "'m' names two dimensions of one tensor");
  fails("m k -> m; k: product", "is no way to combine parts");
  fails("m k -> m; k sum", "is no way to combine parts");
  fails("m k -> m k; k: sum", "every result has it");
  fails("m -> m; k: sum", "'k' is combined and names no dimension of an operand");
  fails("m k -> m; k: sum, k: max", "'k' is combined in two ways");
  fails("m (k) -> m", "'(k)' is no name of a dimension");
}

TEST(CallRule, StandsInTheTextOfATrace) {
  const std::string text =
      "stepc.trace 1\n"
      "storage s0 bytes=16 external\n"
      "storage s1 bytes=16\n"
      "%0: f32[4] @s0 = batch \"0\"\n"
      "call 0 %1: f32[4] @s1 = my::op(%0) rule flops 8.0 bytes 32.0 dims \"n -> n\" | forward \"\"\n"
      "ticks 1\n";
  const Trace trace = parse_trace(text);
  EXPECT_EQ(to_text(trace), text);
  EXPECT_EQ(trace.calls[0].rule->bytes, 32);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  EXPECT_USER_ERROR(parse_trace(with("flops 8.0", "flops -8.0")), "an amount of work is 0 or more");
  EXPECT_USER_ERROR(parse_trace(with("n -> n", "n -> k")), "line 5");
}

}  // namespace
}  // namespace stepc
