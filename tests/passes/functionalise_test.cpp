#include "passes/from_trace/functionalise.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "interp/trace_memory.h"
#include "ops/op_def.h"
#include "tests/passes/random_trace.h"

namespace stepc {
namespace {

const External& external_of(const Trace& trace, const GraphInput& input) {
  for (const External& external : trace.externals)
    if (external.key == input.key) return external;
  throw std::logic_error("an input of no external: " + input.key);
}

// Runs the trace with memory semantics and its graph in the interpreter; empty where all bits agree.
std::string first_disagreement(const Trace& trace, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<StorageId, Bytes> memory;
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    if (!trace.storages[s].external) continue;
    const DType dtype = trace.values[0].dtype;
    Array content({dtype, {static_cast<int64_t>(trace.storages[s].bytes) / size_of(dtype)}});
    for (int64_t i = 0; i < content.count(); ++i) content.set(i, static_cast<int64_t>(random() % 15) - 7);
    memory[StorageId(s)] = to_bytes(content);
  }
  const TraceMemory expected = run_with_memory(trace, memory);

  const Graph graph = functionalise(trace);
  verify_ops(graph);
  if (!(parse_graph(to_text(graph)) == graph)) return "the text reads back to another graph";
  const auto strides_of = [&](const GraphInput& input) {
    return input.strides.empty() ? contiguous_strides(graph.shape(input.tensor)) : input.strides;
  };
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    const StorageId storage = trace.values[external_of(trace, input).value.index()].storage;
    inputs.push_back(read_window(memory[storage], graph.type(input.tensor), strides_of(input), input.offset));
  }
  const std::vector<Array> outputs = interpret(graph, inputs);

  size_t returned = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const GraphOutput& output = graph.outputs[i];
    if (output.kind == GraphOutput::Kind::kReturn) {
      const Array& want = expected.outputs[returned++];
      if (!same_bits(outputs[i], want))
        return str("output {} is {} and must be {}", i, to_text(outputs[i]), to_text(want));
    } else {
      const GraphInput& input = graph.inputs[output.input];
      const StorageId storage = trace.values[external_of(trace, input).value.index()].storage;
      write_window(memory[storage], outputs[i], strides_of(input), input.offset);
    }
  }
  for (const auto& [storage, bytes] : memory)
    if (bytes != expected.storages[storage.index()]) return str("storage s{} holds other bytes", storage);
  return {};
}

// 10,000 programs with fixed seeds; STEPC_PROGRAMS asks for another number.
TEST(Functionalise, RandomProgramsKeepEveryBit) {
  const char* asked = std::getenv("STEPC_PROGRAMS");
  const uint64_t programs = asked == nullptr ? 10000 : std::strtoull(asked, nullptr, 10);
  size_t strided = 0;
  size_t updates = 0;
  for (uint64_t seed = 0; seed < programs; ++seed) {
    const int steps = 6 + static_cast<int>(seed % 20);
    const Trace trace = test::RandomTrace(seed).make(steps);
    verify(trace);
    const std::string wrong = first_disagreement(trace, seed);
    if (!wrong.empty()) {
      int shortest = 0;
      while (first_disagreement(test::RandomTrace(seed).make(shortest), seed).empty()) ++shortest;
      const Trace smallest = test::RandomTrace(seed).make(shortest);
      FAIL() << "program " << seed << " of " << shortest << " steps: " << first_disagreement(smallest, seed) << "\n"
             << to_text(smallest) << to_text(functionalise(smallest));
    }
    const Graph graph = functionalise(trace);
    for (const Node& node : graph.nodes) strided += node.op.starts_with("as_strided") ? 1 : 0;
    for (const GraphOutput& output : graph.outputs) updates += output.kind == GraphOutput::Kind::kUpdate ? 1 : 0;
  }
  EXPECT_GT(updates, programs / 2);  // the programs do change memory
  EXPECT_GT(strided, 0U);            // and have windows that no better view says
}

}  // namespace
}  // namespace stepc
