#include "ops/sharding_rule.h"

#include <gtest/gtest.h>

#include "ops/op_def.h"
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

}  // namespace
}  // namespace stepc
