// Exchanges that are begun and waited for mean what they did.
#include "passes/split_collectives.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "interp/interpret_ranks.h"
#include "ops/op_def.h"
#include "tests/interp/random_inputs.h"

namespace stepc {
namespace {

TEST(SplitCollectives, MeanWhatTheyDid) {
  for (const int64_t ranks : {2, 3, 4})
    for (const std::string op : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "rotate"}) {
      const std::string result = op == "all_gather"       ? str("{}, {}, 8192", ranks, ranks)
                                 : op == "reduce_scatter" ? "8192"
                                                          : str("{}, 8192", ranks);
      const Graph graph =
          parse_graph(str("stepc.graph 1\nmesh tp={0}\ninput %0: f32[{0}, 8192] = captured \"0\"\n"
                          "%1: f32[{1}] = {2}(%0) {{axes=[0], ranks={0}{3}}} | forward \"\"\nreturn %1\n",
                          ranks, result, op,
                          op == "rotate"                           ? ", by=1"
                          : op.find("reduce") != std::string::npos ? ", reduce=\"sum\""
                                                                   : ""));
      const Graph split = split_collectives(graph, 0), on_the_way = split_collectives(graph, 0, true);
      for (const Graph* one : {&split, &on_the_way}) {
        verify_ops(*one);
        EXPECT_GT(one->nodes.size(), graph.nodes.size()) << op;
      }
      EXPECT_EQ(on_the_way == split, op.find("reduce") == std::string::npos) << "what reduces stays a reduction";
      std::vector<std::vector<Array>> inputs;
      for (int64_t rank = 0; rank < ranks; ++rank)
        inputs.push_back(test::random_inputs(graph, static_cast<uint64_t>(rank), 2));
      const auto before = interpret_ranks(graph, inputs);
      for (const Graph* one : {&split, &on_the_way}) {
        const auto after = interpret_ranks(*one, inputs);
        for (size_t rank = 0; rank < inputs.size(); ++rank)
          EXPECT_LE(largest_error(after[rank][0], before[rank][0]), 1e-6) << op << " of " << ranks;
      }
    }
}

}  // namespace
}  // namespace stepc
