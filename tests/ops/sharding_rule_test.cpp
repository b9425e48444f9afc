#include "ops/rules/sharding_rule.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/op_def.h"
#include "tests/expect_user_error.h"
#include "tests/ops/op_examples.h"

namespace stepc {
namespace {

using test::f64;

std::string rule_of(std::string_view op, const std::vector<TensorType>& inputs, Attrs attrs = {}) {
  const OpCall call = {inputs, complete_attrs(op_def(op), std::move(attrs))};
  return to_text(op_def(op).sharding(call, infer_types(op_def(op), call)));
}

TEST(ShardingRule, MatmulContractsToAPartialSum) {
  EXPECT_EQ(rule_of("matmul", {f64({4, 6}), f64({6, 2})}),
            "({0}, {2}) ({2}, {1}) -> ({0}, {1}); 0 of 4 parallel; 1 of 2 parallel; 2 of 6 sum");
  EXPECT_EQ(rule_of("matmul", {f64({4, 6}), f64({2, 6})}, {{"transpose_b", true}}),
            "({0}, {2}) ({1}, {2}) -> ({0}, {1}); 0 of 4 parallel; 1 of 2 parallel; 2 of 6 sum");
}

TEST(ShardingRule, BroadcastDimensionsHaveNoFactor) {
  EXPECT_EQ(rule_of("add", {f64({4, 1, 2}), f64({6, 2})}),
            "({0}, {}, {2}) ({1}, {2}) -> ({0}, {1}, {2}); 0 of 4 parallel; 1 of 6 parallel; 2 of 2 parallel");
}

TEST(ShardingRule, ReshapeSharesWhatBothSidesCut) {
  const auto text = [](Shape from, Shape to) {
    return to_text(reshape_rule(f64(std::move(from)), f64(std::move(to))));
  };
  EXPECT_EQ(text({6, 4}, {2, 3, 4}),
            "({0, 1}, {2}) -> ({0}, {1}, {2}); 0 of 2 parallel; 1 of 3 parallel; 2 of 4 parallel");
  EXPECT_EQ(text({2, 3}, {6}), "({0}, {1}) -> ({0, 1}); 0 of 2 parallel; 1 of 3 parallel");
  EXPECT_EQ(text({4, 3, 5}, {6, 2, 5}), "({0}, {}, {1}) -> ({0}, {}, {1}); 0 of 2 parallel; 1 of 5 parallel");
  EXPECT_EQ(text({1, 4}, {4}), "({}, {0}) -> ({0}); 0 of 4 parallel");
  EXPECT_EQ(text({}, {1}), "() -> ({})");
  EXPECT_EQ(text({0, 2}, {2, 0}), "({}, {}) -> ({}, {})");
}

// A graph of one call of a program's own operator.
ShardingRule rule_of_call(const std::string& left, const std::string& right, const std::string& result,
                          const std::string& rule) {
  const Graph graph = parse_graph(
      str("stepc.graph 1\ninput %0: {} = batch \"0\"\ninput %1: {} = batch \"1\"\n%2: {} = my::op(%0, %1) -> %{} | "
          "forward \"\"\nreturn %2\n",
          left, right, result, rule));
  return sharding_rule_of(graph, graph.nodes[0]);
}

TEST(ShardingRule, OfAProgramsOwnOperatorIsAsItNamesTheDimensions) {
  const std::string named = " rule flops 0.0 dims \"m k, k n -> m n; k: sum\"";
  EXPECT_EQ(to_text(rule_of_call("f32[4, 6]", "f32[6, 2]", "f32[4, 2]", named)),
            "({0}, {1}) ({1}, {2}) -> ({0}, {2}); 0 of 4 parallel; 1 of 6 sum; 2 of 2 parallel");
  // A shard of the call has the same names.
  EXPECT_EQ(to_text(rule_of_call("f32[4, 3]", "f32[3, 2]", "f32[4, 2]", named)),
            "({0}, {1}) ({1}, {2}) -> ({0}, {2}); 0 of 4 parallel; 1 of 3 sum; 2 of 2 parallel");
  EXPECT_EQ(to_text(rule_of_call("f32[4, 6]", "f32[1, 6]", "f32[4, 6]", " rule flops 0.0 dims \"a _, a b -> a b\"")),
            "({0}, {}) ({}, {1}) -> ({0}, {1}); 0 of 4 parallel; 1 of 6 parallel");
  EXPECT_EQ(to_text(rule_of_call("f32[4, 6]", "f32[6, 2]", "f32[4, 2]", " rule flops 0.0")),
            "({}, {}) ({}, {}) -> ({}, {})");
  EXPECT_EQ(to_text(rule_of_call("f32[4, 6]", "f32[6, 2]", "f32[4, 2]", "")), "({}, {}) ({}, {}) -> ({}, {})");
}

TEST(ShardingRule, NamesThatDoNotFitTheCallAreRefused) {
  const auto fails = [](const std::string& dims, const char* why) {
    EXPECT_USER_ERROR(rule_of_call("f32[4, 6]", "f32[6, 2]", "f32[4, 2]", " rule flops 0.0 dims \"" + dims + "\""),
                      why);
  };
  fails("m k, m n -> m n; k: sum", "'m' is 4 and, in operand 1, 6");
  fails("m k, k -> m _; k: sum", "it names 1 dimensions of operand 1, which is a f32[6, 2]");
  fails("m k -> m _; k: sum", "it names the dimensions of 1 operands, the call has 2");
}

TEST(ShardingRule, OfANodeIsItsRows) {
  const Graph graph = parse_graph(
      "stepc.graph 1\ninput %0: f32[4, 6] = batch \"0\"\n%1: f32[4, 6] = exp(%0) | forward \"\"\nreturn %1\n");
  EXPECT_EQ(to_text(sharding_rule_of(graph, graph.nodes[0])),
            "({0}, {1}) -> ({0}, {1}); 0 of 4 parallel; 1 of 6 parallel");
}

}  // namespace
}  // namespace stepc
