#include "plan/unordered_sums.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace stepc {
namespace {

Trace with_call(const std::string& op, const std::string& device) {
  Trace trace;
  trace.device = device;
  trace.calls.resize(2);
  trace.calls[0].op = "aten::mm";
  trace.calls[1].op = op;
  return trace;
}

TEST(UnorderedSums, AreThoseOfAtomicAdditionsOnADevice) {
  EXPECT_EQ(adds_in_any_order(with_call("aten::index_add_", "cuda:0"), false), "aten::index_add_");
  EXPECT_EQ(adds_in_any_order(with_call("aten::scatter_reduce.two", "cuda:0"), false), "aten::scatter_reduce");
  EXPECT_EQ(adds_in_any_order(with_call("aten::sum.dim_IntList", "cuda:0"), false), "");
  EXPECT_EQ(adds_in_any_order(with_call("aten::index_add_", ""), false), "");
}

TEST(UnorderedSums, AreNoneWherePyTorchIsToldToBeDeterministic) {
  const Trace trace = with_call("aten::_scaled_dot_product_flash_attention_backward", "cuda:0");
  EXPECT_NE(adds_in_any_order(trace, false), "");
  EXPECT_EQ(adds_in_any_order(trace, true), "");
}

}  // namespace
}  // namespace stepc
