#include "passes/rewrite/find_documents.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "ops/attention_operands.h"
#include "ops/graph_builder.h"

namespace stepc {
namespace {

constexpr int64_t kRows = 2, kTokens = 7;

// Attention whose mask compares documents, and places that count tokens or that the program gives.
Graph packed_attention(bool counts) {
  GraphBuilder b;
  const auto input = [&](DType dtype, Shape shape) {
    const std::string key = std::to_string(b.graph().inputs.size());
    return b.graph().add_input({InputKind::kBatch, key, {}, {}, 0}, {dtype, std::move(shape)});
  };
  std::vector<TensorId> heads;
  for (int k = 0; k < 3; ++k) heads.push_back(input(DType::kF64, {kRows, 2, kTokens, 4}));
  const TensorId documents = input(DType::kI64, {kRows, kTokens});
  const TensorId given = input(DType::kI64, {kRows, kTokens});
  const auto of_queries = [&](TensorId x, int64_t rows) { return b.reshape(x, {rows, 1, kTokens, 1}); };
  const auto of_keys = [&](TensorId x, int64_t rows) { return b.reshape(x, {rows, 1, 1, kTokens}); };
  const TensorId counted = b.add("iota", {}, {{"shape", Shape{kTokens}}, {"dtype", DType::kI64}, {"dim", int64_t{0}}});
  const TensorId places = counts ? counted : given;
  const int64_t rows = counts ? 1 : kRows;
  const TensorId same = b.add("eq", {of_queries(documents, kRows), of_keys(documents, kRows)});
  const TensorId seen = b.add("logical_and", {b.add("le", {of_keys(places, rows), of_queries(places, rows)}), same});
  heads.push_back(b.add("where", {seen, b.full(0, DType::kF64), b.full(-INFINITY, DType::kF64)}));
  for (TensorId made : b.add_all("attention", heads, {{"scale", 0.5}, {"causal", false}})) {
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = made;
  }
  return b.take();
}

// Documents one behind the other; each token has a place of its own in its document, and sees itself.
std::vector<Array> packed_rows(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    int64_t document = 0;
    for (int64_t i = 0; i < array.count(); ++i) {
      if (array.is_real())
        array.set(i, static_cast<double>(random() % 2000) / 1000 - 1);
      else
        array.set(i, input.key == "3" ? document += static_cast<int64_t>(random() % 2) : i % kTokens - 3);
    }
    out.push_back(std::move(array));
  }
  return out;
}

TEST(FindDocuments, KeepsTheMeaningOfAMask) {
  for (const bool counts : {false, true})
    for (const bool is_for_gpu : {false, true}) {
      const Graph before = packed_attention(counts);
      const Graph after = find_documents(before, is_for_gpu);
      ASSERT_LT(after.nodes.size(), before.nodes.size() + (is_for_gpu ? 20 : 0));
      const Node& attention = *std::ranges::find_if(after.nodes, [](const Node& node) { return attends(node); });
      EXPECT_EQ(attention.inputs.size(), counts ? 5U : 7U);
      EXPECT_EQ(attention.attrs.get<bool>("causal"), counts);
      for (const GraphTensor& tensor : after.tensors)
        EXPECT_LT(element_count(tensor.type.shape), 2 * kRows * 4 * kTokens + 1);
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const std::vector<Array> inputs = packed_rows(before, seed);
        const std::vector<Array> want = interpret(before, inputs), have = interpret(after, inputs);
        for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(same_bits(have[k], want[k])) << "seed " << seed;
        if (!is_for_gpu) continue;
        EXPECT_NE(have.back().integer(0), 0) << "documents lie in order, seed " << seed;
      }
      EXPECT_EQ(find_documents(after, is_for_gpu), after);
    }
}

// What comes back after another document is no row of documents.
TEST(FindDocuments, AGuardFindsDocumentsThatAreNotInOrder) {
  const Graph graph = find_documents(packed_attention(false), true);
  const auto holds = [&](int64_t row, std::vector<int64_t> documents, std::vector<int64_t> places) {
    std::vector<Array> inputs = packed_rows(graph, 1);
    for (int64_t t = 0; t < kTokens; ++t) {
      inputs[3].set(row * kTokens + t, documents[static_cast<size_t>(t)]);
      inputs[4].set(row * kTokens + t, places[static_cast<size_t>(t)]);
    }
    return interpret(graph, inputs).back().integer(0) != 0;
  };
  const std::vector<int64_t> counted = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(holds(0, {0, 0, 1, 1, 2, 2, 2}, counted));
  EXPECT_TRUE(holds(1, {5, 5, 5, 5, 9, 9, 9}, {0, 1, 2, 3, 0, 1, 2}));
  EXPECT_FALSE(holds(1, {0, 0, 1, 1, 0, 0, 0}, counted));
  EXPECT_FALSE(holds(0, {0, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace stepc
