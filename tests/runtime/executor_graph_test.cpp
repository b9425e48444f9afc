// Schedules of fused Graphs on random inputs, beside the interpreter: with kernels and without, several times on one
// arena, which holds nothing but NaN before each run.
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/text.h"
#include "interp/interpret.h"
#include "runtime/arena.h"
#include "tests/interp/random_inputs.h"
#include "tests/runtime/arrays.h"
#include "tests/runtime/planned_graph.h"
#include "tests/schedule/random_step.h"

namespace stepc {
namespace {

// Integers choose rows of eight.
std::vector<Array> random_inputs(const Graph& graph, uint64_t seed) { return test::random_inputs(graph, seed, 8); }

// As the program holds it: with the strides of the input.
at::Tensor programs(const Array& array, const GraphInput& input) {
  at::Tensor dense = test::tensor_of(array);
  if (input.strides.empty()) return dense;
  return at::empty_strided(array.type.shape, input.strides, dense.options()).copy_(dense);
}

// The first number that a run takes from the default generator after at::manual_seed(seed).
int64_t seed_of_draws(uint64_t seed) {
  at::manual_seed(seed);
  return at::randint(INT64_MAX, {}, at::kLong).item<int64_t>();
}

void fill_arena(uint64_t bytes) {
  const ArenaLease arena;  // the one that this thread's next run gets
  (*arena).grow_to(bytes);
  std::memset((*arena).base(), 0xFF, bytes);
}
bool is_in_arena(const at::Tensor& tensor, uint64_t bytes) {
  const ArenaLease arena;
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return begin >= (*arena).base() && begin < (*arena).base() + bytes;
}

// Host code that halves what it finds in the program's memory, beside the interpreter's.
class Interruptions {
 public:
  Interruptions(const Graph& graph, uint64_t arena_bytes) : graph_(graph), arena_bytes_(arena_bytes) {}

  // What comes at a pause is none of the program's before.
  std::vector<at::Tensor> take_incoming(std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> incoming;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (graph_.inputs[i].kind == InputKind::kIncoming) incoming.push_back(std::exchange(tensors[i], {}));
    return incoming;
  }

  void expect(const HostCode& code, const std::vector<Array>& given, std::vector<Array>& slots) {
    expected_[code.event] = {code, given, slots};
    for (size_t s = 0; s < slots.size(); ++s)
      if (!is_incoming(code.slots[s]))
        for (int64_t k = 0; k < slots[s].count(); ++k) slots[s].set(k, 0.5 * slots[s].real(k));
  }

  void happen(size_t event, const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& tensors) const {
    const Expected& expected = expected_.at(event);
    ASSERT_EQ(given.size(), expected.given.size());
    for (size_t g = 0; g < given.size(); ++g) {
      const HostCode::Given& one = expected.code.given[g];
      ASSERT_EQ(given[g].defined(), one.tensor.valid());
      if (!one.tensor.valid()) continue;
      EXPECT_LE(largest_error(test::array_of(given[g], graph_.type(one.tensor)), expected.given[g]), 1e-4) << g;
      EXPECT_FALSE(is_in_arena(given[g], arena_bytes_)) << g;
      if (!one.strides.empty()) {
        EXPECT_EQ(given[g].strides(), c10::IntArrayRef(one.strides));
      }
    }
    for (size_t s = 0; s < expected.slots.size(); ++s) {
      const HostCode::Slot& slot = expected.code.slots[s];
      if (is_incoming(slot)) continue;
      const at::Tensor& tensor = tensors[slot.input];
      EXPECT_LE(largest_error(test::array_of(tensor, graph_.type(slot.before)), expected.slots[s]), 1e-4)
          << "input " << slot.input << " at " << event;
      tensor.mul_(0.5);
    }
  }

 private:
  struct Expected {
    HostCode code;
    std::vector<Array> given, slots;
  };
  [[nodiscard]] bool is_incoming(const HostCode::Slot& slot) const {
    return graph_.inputs[slot.input].kind == InputKind::kIncoming;
  }

  const Graph& graph_;
  uint64_t arena_bytes_;
  std::map<size_t, Expected> expected_;  // by event
};

// One step from `inputs`; every output beside the interpreter's.
MemoryCounts run(const Graph& graph, Executor& executor, std::vector<Array> inputs, uint64_t seed,
                 RunTimes* times = nullptr) {
  const uint64_t arena_bytes = executor.schedule().arena_bytes;
  RunInputs given;
  given.times = times;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_rng = graph.inputs[i].kind == InputKind::kRng;
    if (is_rng) inputs[i].integers = {seed_of_draws(seed), 0};
    given.tensors.push_back(is_rng ? at::Tensor() : programs(inputs[i], graph.inputs[i]));
  }
  Interruptions interruptions(graph, arena_bytes);
  const std::vector<at::Tensor> incoming = interruptions.take_incoming(given.tensors);
  EXPECT_EQ(executor.why_not(given.tensors), "");
  const std::vector<Array> want = interpret(graph, inputs, [&](const auto& code, const auto& given, auto& slots) {
    interruptions.expect(code, given, slots);
  });
  given.on_event = [&](size_t event, const std::vector<at::Tensor>& tensors) {
    interruptions.happen(event, tensors, given.tensors);
    return std::string();
  };
  fill_arena(arena_bytes);
  at::manual_seed(seed);
  StepResult result = executor.run(given);
  if (result.paused) {
    interruptions.happen(0, result.given, given.tensors);
    fill_arena(1 << 16);  // another one: that of the run is taken
    result = executor.resume(incoming);
  }
  EXPECT_TRUE(result.is_whole());
  size_t returned = 0, bound = 0;
  std::vector<bool> updated(inputs.size(), false);
  for (size_t o = 0; o < want.size(); ++o) {
    const GraphOutput& output = graph.outputs[o];
    if (output.kind == GraphOutput::Kind::kGuard) continue;  // the run is whole: it held
    at::Tensor value;
    if (output.kind == GraphOutput::Kind::kUpdate) {
      value = given.tensors[output.input];
      updated[output.input] = true;
    } else if (output.kind == GraphOutput::Kind::kReturn) {
      value = result.outputs.at(returned++);
    } else {
      EXPECT_EQ(result.rebindings.at(bound).key, output.key);
      value = result.rebindings.at(bound++).tensor;
    }
    EXPECT_FALSE(is_in_arena(value, arena_bytes)) << "output " << o << " of seed " << seed;
    EXPECT_LE(largest_error(test::array_of(value, graph.type(output.tensor)), want[o]), 1e-4)
        << "output " << o << " of seed " << seed << "\n"
        << to_text(graph) << to_text(executor.schedule());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(executor.schedule().inputs[i].written, updated[i]) << i;
    if (updated[i] || !given.tensors[i].defined()) continue;
    EXPECT_TRUE(same_bits(test::array_of(given.tensors[i], inputs[i].type), inputs[i])) << "input " << i << " changed";
  }
  return result.memory;
}

struct Kernels {
  const char* name;
  bool generated, micro;
};
void PrintTo(const Kernels& kernels, std::ostream* out) { *out << kernels.name; }  // NOLINT: googletest's name

class RunSteps : public ::testing::TestWithParam<Kernels> {
 protected:
  RunSteps() {
    if (!GetParam().generated) kernels_.before_compile = [](const LoopProgram&) { throw std::runtime_error("none"); };
    if (!GetParam().micro) kernels_.micro_kernels = {};
    kernels_.micro_kernels.intel = false;
  }
  [[nodiscard]] MatmulRule rule() const { return matmul_rule(features_of(kernels_.micro_kernels)); }
  [[nodiscard]] Graph step(uint64_t seed) const { return test::random_fused_step(seed, rule()); }

  KernelSources kernels_{{}};
};

TEST_P(RunSteps, ComeToWhatTheInterpreterSays) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = step(seed);
    const auto [plan, executor] = test::planned(graph, kernels_);
    EXPECT_EQ(plan.one_by_one.empty(), GetParam().generated) << seed;
    EXPECT_EQ(plan.schedule.programs.empty(), !GetParam().generated) << seed;
    for (uint64_t k = 0; k < 2; ++k) {
      const MemoryCounts counts = run(graph, *executor, random_inputs(graph, 10 * seed + k), seed);
      EXPECT_EQ(counts.unplanned, 0U) << "seed " << seed << ", run " << k << "\n" << to_text(plan.schedule);
      EXPECT_EQ(counts.arena_peak_bytes, plan.schedule.arena_bytes) << seed;
      EXPECT_GE(counts.kept_bytes, plan.schedule.own_bytes()) << seed;  // ATen may lay out a result as it likes first
      if (GetParam().generated && GetParam().micro) {
        EXPECT_EQ(counts.kept_bytes, plan.schedule.own_bytes()) << seed;
      }
    }
    if (HasFailure()) return;
  }
}

TEST_P(RunSteps, GoOnWhereTheProgramInterruptedThem) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = test::random_fused_step(seed, rule(), /*interrupted=*/true);
    const auto [plan, executor] = test::planned(graph, kernels_);
    EXPECT_EQ(plan.schedule.count(Instruction::Kind::kPause), 1U);
    EXPECT_EQ(plan.schedule.count(Instruction::Kind::kEvent), 1U);
    for (uint64_t k = 0; k < 2; ++k) run(graph, *executor, random_inputs(graph, 10 * seed + k), seed);
    if (HasFailure()) return;
  }
}

TEST_P(RunSteps, NameTheProgramsThatNoCodeCanBeGeneratedFor) {
  const GraphSchedule plan = test::plan_measured(step(3), {.features = features_of(kernels_.micro_kernels)});
  ASSERT_GT(plan.schedule.programs.size(), 1U);
  const LoopProgram& bad = plan.schedule.programs[1];
  const auto refuse_more = kernels_.before_compile;
  kernels_.before_compile = [&](const LoopProgram& program) {
    if (refuse_more) refuse_more(program);
    if (program == bad) throw std::runtime_error("not this one");
  };
  try {
    const Executor executor(plan.schedule, &kernels_);
    ADD_FAILURE() << "all programs were compiled";
  } catch (const RefusedPrograms& refused) {
    EXPECT_EQ(refused.why.size(), GetParam().generated ? 1U : plan.schedule.programs.size());
    EXPECT_EQ(refused.why.at(1), GetParam().generated ? "not this one" : "none");
  }
}

TEST_P(RunSteps, FinishMatmulsWhereTheyAreMade) {
  size_t finished = 0;
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const Instruction& instruction : test::planned(step(seed), kernels_).plan.schedule.instructions)
      finished += instruction.matmul && !instruction.matmul->epilogue_programs.empty() ? 1 : 0;
  if (GetParam().generated && rule().f32) {
    EXPECT_GT(finished, 20U);
  } else {
    EXPECT_EQ(finished, 0U);
  }
}

TEST_P(RunSteps, MakeMatmulsOfOneOperandInOneCall) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[40, 32] = batch "x"
input %1: f32[24, 32] = parameter "q"
input %2: f32[32, 16] = parameter "k"
%3: f32[40, 24] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward "" group 0
%4: f32[40, 16] = matmul(%0, %2) {transpose_a=false, transpose_b=false} | forward "" group 0
%5: f32[24, 16] = matmul(%3, %4) {transpose_a=true, transpose_b=false} | backward ""
return %4
return %5
)");
  const auto [plan, executor] = test::planned(graph, kernels_);
  const std::vector<Instruction>& instructions = plan.schedule.instructions;
  EXPECT_TRUE(plan.one_by_one.empty()) << "a matmul by itself is no loss";
  if (rule().f32) {
    ASSERT_EQ(instructions.size(), 2U);
    EXPECT_EQ(instructions[0].matmul.value().products.size(), 2U);
    EXPECT_EQ(instructions[0].op, "matmul");
    EXPECT_GT(instructions[0].scratch.bytes, 0U);
  } else {
    EXPECT_EQ(instructions.size(), 3U);
    EXPECT_EQ(plan.schedule.count(Instruction::Kind::kOp), 3U);
  }
  for (uint64_t k = 0; k < 2; ++k) EXPECT_EQ(run(graph, *executor, random_inputs(graph, k), 1).unplanned, 0U);
}

TEST_P(RunSteps, WriteDownWhenEveryInstructionRan) {
  const Graph graph = step(1);
  const auto [plan, executor] = test::planned(graph, kernels_);
  RunTimes times;
  for (int k = 0; k < 2; ++k) run(graph, *executor, random_inputs(graph, 1), 1, &times);
  std::vector<size_t> expected;
  for (size_t i = 0; i < plan.schedule.instructions.size(); ++i) expected.push_back(i);
  ASSERT_EQ(times.instructions().size(), expected.size()) << "of the last run alone";
  double end = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const InstructionTime& time = times.instructions()[i];
    EXPECT_EQ(time.index, expected[i]);
    EXPECT_LE(end, time.begin_seconds);
    EXPECT_LE(time.begin_seconds, time.end_seconds);
    end = time.end_seconds;
  }
  EXPECT_LE(end, times.seconds());
}

INSTANTIATE_TEST_SUITE_P(Kernels, RunSteps,
                         ::testing::Values(Kernels{"all", true, true}, Kernels{"generated", true, false},
                                           Kernels{"blocked", false, true}, Kernels{"aten", false, false}),
                         [](const auto& info) { return info.param.name; });

// ---- one ATen call a node

TEST(PlainSteps, ComeToWhatTheInterpreterSays) {
  KernelSources kernels{{}};
  size_t by_chunk = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = test::random_fused_step(seed, matmul_rule({}));
    const GraphSchedule plan = test::plan_measured(graph, {.threads = 2, .is_plain = true});
    EXPECT_TRUE(plan.schedule.programs.empty());
    by_chunk += plan.schedule.count(Instruction::Kind::kNodes);
    Executor executor(plan.schedule, &kernels);
    for (uint64_t k = 0; k < 2; ++k)
      EXPECT_EQ(run(graph, executor, random_inputs(graph, 10 * seed + k), seed).unplanned, 0U) << seed;
    if (HasFailure()) return;
  }
  EXPECT_GT(by_chunk, 60U);
}

// ---- dry runs

constexpr std::string_view kLargeUpdate = R"(stepc.graph 1
input %0: f32[300, 1001] = parameter "w"
input %1: f32[300, 1001] = optimizer_state "m"
input %2: bf16[300, 1001] = batch "g"
%3: f32[300, 1001] = cast(%2) {dtype=f32} | update "" group 0
%4: f32[300, 1001] = mul(%3, %3) | update "" group 0
%5: f32[] = sum(%4) {dims=[0, 1], keepdim=false} | update "" group 0
%6: f32[300, 1001] = cast(%2) {dtype=f32} | update "" group 1
%7: f32[300, 1001] = mul(%6, %5) | update "" group 1
%8: f32[300, 1001] = add(%1, %7) | update "" group 1
%9: f32[300, 1001] = sub(%0, %8) | update "" group 1
update %0 = %9
update %1 = %8
return %5
)";

// Shown in chunks, the tensors are as a run leaves them, and then as they were before.
void expect_dry_as_run(const GraphSchedule& plan, KernelSources& kernels) {
  Executor executor(plan.schedule, &kernels);
  at::manual_seed(1);
  const std::vector<at::Tensor> before = {at::randn({300, 1001}), at::randn({300, 1001}),
                                          at::randn({300, 1001}).to(at::kBFloat16)};
  std::vector<at::Tensor> tensors, shown;
  for (const at::Tensor& one : before) {
    tensors.push_back(one.clone());
    shown.push_back(at::zeros_like(one));
  }
  size_t chunks = 0;
  RunInputs dry;
  dry.tensors = tensors;
  dry.show_written = [&](size_t input, const at::Tensor& left, int64_t first) {
    ++chunks;
    shown[input].view({-1}).narrow(0, first, left.numel()).copy_(left.reshape({-1}));
  };
  const StepResult looked = executor.run(dry);
  EXPECT_GT(chunks, 2U) << to_text(plan.schedule);
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].equal(before[i])) << i;
  const StepResult ran = executor.run({tensors, {}, {}});
  EXPECT_TRUE(looked.outputs[0].equal(ran.outputs[0]));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(tensors[i].equal(shown[i])) << i;
}

TEST(DryRun, TakesLargeUpdatesBackAChunkAtATime) {
  const Graph graph = parse_graph(kLargeUpdate);
  KernelSources kernels{{}};
  expect_dry_as_run(test::planned(graph, kernels).plan, kernels);
  const GraphSchedule plain = test::plan_measured(graph, {.threads = 2, .is_plain = true});
  EXPECT_EQ(plain.schedule.count(Instruction::Kind::kNodes), 2U);
  // Neither call holds what another one makes of all elements.
  EXPECT_LT(plain.schedule.arena_bytes, 300U * 1001 * 4 * 3);
  expect_dry_as_run(plain, kernels);
}

// ---- guards

TEST(ExecutorGuard, TurnsBackBeforeAnythingIsWritten) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[4] = parameter "w"
input %1: f32[4] = batch "x"
input %2: f32[] = batch "limit"
%3: f32[4] = sub(%0, %1) | update "" group 0
%4: f32[] = sum(%1) {dims=[0], keepdim=false} | forward "" group 1
%5: bool[] = lt(%4, %2) | forward "" group 1
update %0 = %3
guard %5
)");
  KernelSources kernels{{}};
  const auto [plan, executor] = test::planned(graph, kernels);
  const at::Tensor w = at::ones({4});
  const StepResult held = executor->run({{w, at::ones({4}), at::full({}, 5.0)}, {}, {}});
  EXPECT_FALSE(held.missed_guard);
  EXPECT_TRUE(w.equal(at::zeros({4})));
  const StepResult missed = executor->run({{w, at::ones({4}), at::full({}, 3.0)}, {}, {}});
  EXPECT_TRUE(missed.missed_guard);
  EXPECT_FALSE(missed.missed_number.has_value());
  EXPECT_FALSE(missed.is_whole());
  EXPECT_TRUE(w.equal(at::zeros({4}))) << "nothing was updated";
}

// ---- opaque calls

// x += 10 y, with the ten in a tensor.
Node add_in_place() {
  Node node;
  node.op = "aten::add_.Tensor";
  node.aten.emplace();
  node.aten->args = {ValueId(0), ValueId(1), ValueId(2)};
  node.aten->results = {std::monostate()};
  node.aten->writes = {0};
  return node;
}
Graph graph_of_call(Node node, bool updates) {
  Graph graph;
  for (const char* key : {"x", "y"})
    node.inputs.push_back(graph.add_input({InputKind::kParameter, key, {}, {}, 0}, {DType::kF32, {3}}));
  node.inputs.push_back(graph.add_input({InputKind::kCaptured, "alpha", {}, {}, 0}, {DType::kF64, {}}));
  const NodeId made = graph.add_node(std::move(node), {{DType::kF32, {3}}});
  graph.outputs.emplace_back();
  graph.outputs.back().kind = updates ? GraphOutput::Kind::kUpdate : GraphOutput::Kind::kReturn;
  graph.outputs.back().tensor = graph.nodes[made.index()].outputs[0];
  verify(graph);
  return graph;
}

TEST(ExecutorCall, CopiesWhatItWritesAndTakesNumbersFromTensors) {
  KernelSources kernels{{}};
  const auto [plan, executor] = test::planned(graph_of_call(add_in_place(), false), kernels);
  EXPECT_EQ(plan.opaque, std::vector<std::string>{"aten::add_.Tensor"});
  const at::Tensor x = at::full({3}, 1.0);
  const StepResult result = executor->run({{x, at::full({3}, 2.0), at::full({}, 10.0, at::kDouble)}, {}, {}});
  ASSERT_EQ(result.outputs.size(), 1U);
  EXPECT_TRUE(result.outputs[0].equal(at::full({3}, 21.0)));
  EXPECT_TRUE(x.equal(at::full({3}, 1.0)));
  EXPECT_EQ(result.memory.unplanned, 0U);
}

TEST(ExecutorCall, WritesTheProgramsMemoryWhereThatIsAnUpdate) {
  KernelSources kernels{{}};
  const auto [plan, executor] = test::planned(graph_of_call(add_in_place(), true), kernels);
  EXPECT_EQ(plan.schedule.instructions.size(), 1U) << "no copy";
  EXPECT_EQ(plan.schedule.peak_bytes(), 0U);
  const at::Tensor x = at::full({3}, 1.0);
  const StepResult result = executor->run({{x, at::full({3}, 2.0), at::full({}, 10.0, at::kDouble)}, {}, {}});
  EXPECT_TRUE(x.equal(at::full({3}, 21.0)));
  EXPECT_EQ(result.memory.unplanned, 0U);
}

}  // namespace
}  // namespace stepc
