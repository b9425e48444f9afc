// Schedules of fused Graphs: by hand on small steps, and on random ones every promise of the header, with and without
// generated code, on machines with and without fast matmuls.
#include "schedule/from_graph.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/text.h"
#include "ir/alignment.h"
#include "loops/lower/epilogue.h"
#include "tests/expect_user_error.h"
#include "tests/schedule/random_step.h"

namespace stepc {
namespace {

using Kind = Instruction::Kind;
using Memory = Buffer::Kind;

constexpr Features kBlocked{.bf16 = true, .f32 = true, .avx512 = true};

const Operand& operand(const Schedule& s, OperandId id) { return s.operands[id.index()]; }
const Buffer& buffer(const Schedule& s, OperandId id) { return s.buffers[operand(s, id).buffer.index()]; }

GraphSchedule planned(std::string_view text, const GraphScheduleOptions& options = {}) {
  const Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  GraphSchedule plan = schedule_graph(graph, options);
  verify(plan.schedule);
  return plan;
}

constexpr std::string_view kSmallStep = R"(input %0: f32[64, 64] = parameter "w"
input %1: f32[32, 64] = batch "0"
%2: f32[64, 64] = transpose(%0) {permutation=[1, 0]} | forward "layer"
%3: f32[32, 64] = matmul(%1, %2) {transpose_a=false, transpose_b=false} | forward "layer"
%4: f32[32, 64] = tanh(%3) | forward "layer" group 0
%5: f32[32, 64] = mul(%4, %4) | forward "layer" group 0
%6: f32[64, 64] = matmul(%5, %1) {transpose_a=true, transpose_b=false} | backward "layer"
%7: f32[64, 64] = sub(%0, %6) | update "" group 1
%8: f32[] = sum(%5) {dims=[0, 1], keepdim=false} | forward "" group 2
update %0 = %7
return %8
)";

// What the program has on the host is copied where it is read, and back.
TEST(FromGraph, AFunctionLiesWhereItsStepDoes) {
  GraphScheduleOptions options{.features = {.sm = 90}};
  options.memory = {"cuda:0", {{InputKind::kParameter, "w"}}};
  const Schedule s = planned(kSmallStep, options).schedule;
  EXPECT_EQ(s.device, "cuda:0");
  for (const ScheduleInput& one : s.inputs)
    EXPECT_EQ(buffer(s, one.operand).space, one.key == "w" ? Space::kHost : Space::kDevice) << one.key;
  const auto crosses = [&](const Instruction& one) {
    return one.kind == Kind::kCopy && buffer(s, one.reads[0]).space != buffer(s, one.writes[0]).space;
  };
  EXPECT_EQ(std::ranges::count_if(s.instructions, crosses), 2);
  for (const Instruction& one : s.instructions)
    if (crosses(one)) {
      EXPECT_EQ(one.attrs.find("non_blocking"), nullptr);
    }
}

// Attention leaves its heads as the projection behind it reads them; an op that overwrites its operand knows nothing of
// that.
TEST(FromGraph, NothingIsOverwrittenInAnotherLayout) {
  const GraphSchedule plan = planned(R"(input %0: f32[2, 4, 8, 16] = batch "q"
input %1: f32[2, 4, 1, 16] = batch "part"
%2: f32[2, 4, 8, 16], %3: f32[2, 4, 8] = attention(%0, %0, %0) {causal=true, scale=0.25} | forward ""
%4: f32[2, 4, 8, 16] = update_slice(%2, %1) {starts=[0, 0, 0, 0], steps=[1, 1, 1, 1]} | forward ""
%5: f32[] = sum(%4) {dims=[0, 1, 2, 3], keepdim=false} | forward "" group 0
return %5
)");
  const Schedule& s = plan.schedule;
  const auto slice = std::ranges::find(s.instructions, "update_slice", &Instruction::op);
  ASSERT_NE(slice, s.instructions.end());
  const Operand &from = operand(s, slice->reads[0]), &to = operand(s, slice->writes[0]);
  EXPECT_NE(from.strides, to.strides);
  EXPECT_FALSE(from.buffer == to.buffer || buffer(s, slice->reads[0]).offset == buffer(s, slice->writes[0]).offset);
}

// What a convolution leaves channels-last stays so through elementwise groups, and updates a parameter that lies so.
constexpr std::string_view kChannelsLast = R"(input %0: f32[8, 4, 3, 3](36, 1, 12, 4) = parameter "w"
input %1: f32[2, 4, 6, 6] = batch "0"
%2: f32[2, 8, 4, 4] = aten::frob(%1, %0) -> % layout 1(36, 1, 12, 4) result layout 0(128, 1, 32, 8) workspace 0 0 | forward ""
%3: f32[2, 8, 4, 4] = relu(%2) | forward "" group 0
%4: f32[8, 4, 3, 3] = aten::frob_backward(%3, %0) -> % layout 0(128, 1, 32, 8) layout 1(36, 1, 12, 4) result layout 0(36, 1, 12, 4) workspace 0 0 | backward ""
%5: f32[] = full() {dtype=f32, shape=[], value=-0.1} | update "" group 1
%6: f32[8, 4, 3, 3] = mul(%4, %5) | update "" group 1
%7: f32[8, 4, 3, 3] = add(%0, %6) | update "" group 1
update %0 = %7
return %3(128, 1, 32, 8)
)";
TEST(FromGraph, ElementwiseGroupsRunOverChannelsLastTensorsAsTheyLie) {
  const GraphSchedule plan = planned(kChannelsLast);
  const Schedule& s = plan.schedule;
  EXPECT_EQ(s.count(Kind::kCopy), 0U) << to_text(s);
  ASSERT_EQ(s.count(Kind::kGenerated), 2U) << to_text(s);
  for (const Instruction& one : s.instructions) {
    if (one.kind != Kind::kGenerated) continue;
    EXPECT_NE(one.why.find("channels-last"), std::string::npos) << one.why;
    const Operand& made = operand(s, one.writes[0]);
    EXPECT_EQ(made.strides, channels_last_strides(made.sizes));
    EXPECT_EQ(s.programs[one.program].buffers.back().count, element_count(made.sizes));
  }
  const auto update = std::ranges::find(s.instructions, "mul+add", &Instruction::op);
  ASSERT_NE(update, s.instructions.end());
  EXPECT_EQ(buffer(s, update->writes[0]).kind, Memory::kInput) << "the update is made where the parameter lies";
  EXPECT_EQ(parse_schedule(to_text(s)), s);
}

TEST(FromGraph, AGroupThatAlsoReadsContiguousTensorsIsWrittenContiguous) {
  std::string text(kChannelsLast);
  const std::string_view layout = " result layout 0(36, 1, 12, 4)";
  text.erase(text.find(layout), layout.size());
  const Schedule s = planned(text).schedule;
  const auto update = std::ranges::find(s.instructions, "mul+add", &Instruction::op);
  ASSERT_NE(update, s.instructions.end());
  const Operand& made = operand(s, update->writes[0]);
  EXPECT_EQ(made.strides, contiguous_strides(made.sizes));
  EXPECT_EQ(s.count(Kind::kCopy), 1U);
}

TEST(FromGraph, PlacesOfASmallStep) {
  for (const Features& features : {Features{}, kBlocked}) {
    const GraphSchedule plan = planned(kSmallStep, {.features = features, .threads = 3});
    const Schedule& s = plan.schedule;
    EXPECT_EQ(s.features, features);
    EXPECT_EQ(s.threads, 3);
    EXPECT_EQ(plan.nodes, 7U);
    EXPECT_EQ(plan.narrowest, DType::kF32);
    ASSERT_EQ(s.instructions.size(), 5U) << "the window is no instruction";
    const Instruction &first = s.instructions[0], &tanh = s.instructions[1];
    EXPECT_EQ(first.kind, features.f32 ? Kind::kMatmul : Kind::kOp);
    EXPECT_EQ(first.source, (Source{Phase::kForward, "layer"}));
    EXPECT_EQ(first.work.flops, 2.0 * 32 * 64 * 64);
    EXPECT_EQ(operand(s, first.reads[1]).buffer, operand(s, s.inputs[0].operand).buffer) << "the program's, transposed";
    EXPECT_EQ(operand(s, first.reads[1]).strides, (Shape{1, 64}));
    EXPECT_EQ(operand(s, first.reads[1]).sizes, (Shape{64, 64}));
    EXPECT_EQ(buffer(s, first.writes[0]).kind, Memory::kArena);

    EXPECT_EQ(tanh.kind, Kind::kGenerated);
    EXPECT_EQ(tanh.op, "tanh+mul");
    EXPECT_EQ(tanh.reads, first.writes);
    ASSERT_EQ(tanh.writes.size(), 1U) << "tanh's result stays inside";
    EXPECT_EQ(buffer(s, tanh.writes[0]).kind, Memory::kArena);
    EXPECT_EQ(buffer(s, tanh.writes[0]).offset, buffer(s, first.writes[0]).offset)
        << "pointwise work over what it reads last";

    const auto with = [&](std::string_view op) -> const Instruction& {
      return *std::ranges::find(s.instructions, op, &Instruction::op);
    };
    EXPECT_EQ(operand(s, with("sub").writes[0]).buffer, operand(s, s.inputs[0].operand).buffer) << "in place";
    EXPECT_EQ(with("sub").source.phase, Phase::kUpdate);
    EXPECT_EQ(buffer(s, with("sum").writes[0]).kind, Memory::kOwn);
    EXPECT_TRUE(s.inputs[0].written);
    EXPECT_FALSE(s.inputs[1].written);
    ASSERT_EQ(s.outputs.size(), 1U) << "updates are where they belong";
    EXPECT_EQ(s.outputs[0].operand, with("sum").writes[0]);
    EXPECT_EQ(s.own_bytes(), 64U);
    EXPECT_EQ(s.input_bytes(), 64U * 64 * 4 + 32 * 64 * 4);
    EXPECT_EQ(s.count(Kind::kGenerated), 3U);
    EXPECT_EQ(s.programs.size(), 3U);
    EXPECT_TRUE(plan.one_by_one.empty());
    EXPECT_GE(s.arena_bytes, s.live_lower_bound_bytes);
    EXPECT_GE(s.live_lower_bound_bytes, 32U * 64 * 4 + 64 * 64 * 4);
    EXPECT_EQ(plan.group_of.size(), s.instructions.size());
    EXPECT_EQ(plan.group_of[1], 0U);
    EXPECT_EQ(plan.group_of[0], UINT32_MAX);
  }
}

TEST(FromGraph, AGroupWithoutCodeRunsNodeByNode) {
  const GraphSchedule plan = planned(kSmallStep, {.refused = {{0, "no code for it"}}});
  const Schedule& s = plan.schedule;
  EXPECT_EQ(plan.one_by_one, std::vector<std::string>{"group 0 (tanh): no code for it"});
  ASSERT_EQ(s.instructions.size(), 6U);
  EXPECT_EQ(s.instructions[1].op, "tanh");
  EXPECT_EQ(s.instructions[1].kind, Kind::kOp);
  EXPECT_EQ(s.instructions[2].op, "mul");
  EXPECT_EQ(s.count(Kind::kGenerated), 2U);
  EXPECT_EQ(s.instructions[1].allocations,
            (std::vector<PlannedAllocation>{{32 * 64 * 4, buffer(s, s.instructions[1].writes[0]).offset, false}}));
}

TEST(FromGraph, WindowsPointIntoWhatTheyShow) {
  const GraphSchedule plan = planned(R"(input %0: f32[8, 6] = batch "0"
%1: f32[8, 6] = exp(%0) | forward ""
%2: f32[6, 8] = transpose(%1) {permutation=[1, 0]} | forward ""
%3: f32[4, 8] = slice(%2) {shape=[4, 8], starts=[2, 0], steps=[1, 1]} | forward ""
%4: f32[32] = reshape(%3) {shape=[32]} | forward ""
%5: f32[4, 8] = tanh(%3) | forward ""
%6: f32[2, 3, 8] = reshape(%1) {shape=[2, 3, 8]} | forward ""
%7: f32[2, 3, 8] = tanh(%6) | forward ""
return %4
return %5
return %7
return %3
)");
  const Schedule& s = plan.schedule;
  const auto with = [&](std::string_view op, size_t nth = 0) -> const Instruction& {
    for (const Instruction& instruction : s.instructions)
      if (instruction.op == op && nth-- == 0) return instruction;
    throw std::out_of_range(std::string(op));
  };
  const BufferId made = operand(s, with("exp").writes[0]).buffer;
  const Operand& slice = operand(s, with("reshape").reads[0]);
  EXPECT_EQ(slice, (Operand{made, DType::kF32, {4, 8}, {1, 6}, 2}));
  EXPECT_EQ(with("tanh").reads, with("reshape").reads);
  EXPECT_EQ(operand(s, with("tanh", 1).reads[0]), (Operand{made, DType::kF32, {2, 3, 8}, {24, 8, 1}, 0}));
  EXPECT_NE(operand(s, with("reshape").writes[0]).buffer, made)
      << "transposed rows are no 32 in a row: they are copied";
  EXPECT_EQ(s.count(Kind::kCopy), 1U) << "the program gets no window on what the step computes";
  EXPECT_EQ(s.instructions.size(), 5U);
}

TEST(FromGraph, TheProgramGetsMemoryOfItsOwn) {
  const GraphSchedule plan = planned(R"(input %0: f32[8] = parameter "w"
input %1: f32[8] = batch "0"
%2: f32[8] = add(%0, %1) | forward ""
%3: f32[8] = mul(%2, %1) | update ""
update %0 = %3
rebind gradient "w" %2
rebind gradient "v" none
return %2
return %0
return none
)");
  const Schedule& s = plan.schedule;
  std::set<BufferId> given;
  ASSERT_EQ(s.outputs.size(), 5U);
  for (const ScheduleOutput& output : s.outputs) {
    if (!output.operand.valid()) continue;
    EXPECT_EQ(buffer(s, output.operand).kind, Memory::kOwn);
    EXPECT_TRUE(given.insert(operand(s, output.operand).buffer).second) << "twice the same memory";
  }
  EXPECT_EQ(given.size(), 3U);
  EXPECT_EQ(s.outputs[0].kind, ScheduleOutput::Kind::kRebind);
  EXPECT_EQ(s.outputs[0].key, "w");
  EXPECT_FALSE(s.outputs[1].operand.valid());
  EXPECT_FALSE(s.outputs[4].operand.valid());
  // The old contents leave after the update has been made: it waits elsewhere.
  const Instruction& last = s.instructions.back();
  EXPECT_EQ(last.kind, Kind::kCopy);
  EXPECT_EQ(last.writes, std::vector<OperandId>{s.inputs[0].operand});
}

TEST(FromGraph, AnUpdateThatReadsAnotherOnesMemoryIsCopiedFirst) {
  const GraphSchedule plan = planned(R"(input %0: f32[8] = parameter "a"
input %1: f32[8] = parameter "b"
update %0 = %1
update %1 = %0
)");
  const Schedule& s = plan.schedule;
  ASSERT_EQ(s.instructions.size(), 4U);
  for (size_t i : {0U, 1U}) {
    EXPECT_EQ(buffer(s, s.instructions[i].writes[0]).kind, Memory::kOwn);
    EXPECT_EQ(s.instructions[i + 2].reads, s.instructions[i].writes);
    EXPECT_EQ(s.instructions[i + 2].writes[0], s.inputs[i].operand);
  }
}

TEST(FromGraph, GuardsStandBeforeWhatIsUpdated) {
  const GraphSchedule plan = planned(R"(input %0: f32[8] = parameter "w"
input %1: f32[8] = batch "0"
%2: f32[8] = sub(%0, %1) | update ""
%3: f32[] = sum(%1) {dims=[0], keepdim=false} | forward ""
%4: bool[] = lt(%3, %3) | forward ""
update %0 = %2
guard %4
)");
  const Schedule& s = plan.schedule;
  ASSERT_EQ(s.instructions.size(), 5U);
  EXPECT_EQ(s.instructions[2].kind, Kind::kGuard);
  EXPECT_EQ(s.instructions[2].reads, s.instructions[1].writes);
  EXPECT_EQ(s.instructions[3].op, "sub");
  EXPECT_EQ(s.instructions[4].kind, Kind::kCopy);  // ATen's sub() writes nowhere but to new memory
  EXPECT_TRUE(s.outputs.empty());
}

TEST(FromGraph, AWorkspaceThatIsKnownTakesTheRulesPlace) {
  constexpr std::string_view kText = R"(input %0: f32[16, 8] = batch "0"
%1: f32[16, 8] = exp(%0) | forward ""
%2: f32[16, 8], %3: i64[16, 8] = sort(%1) {descending=false, dim=1} | forward ""
%4: f32[16, 8] = tanh(%2) | forward ""
return %4
return %3
)";
  const GraphSchedule by_rule = planned(kText, {.threads = 3});
  ASSERT_EQ(by_rule.unknown.size(), 3U);
  GraphScheduleOptions options{.threads = 3};
  for (const UnknownWorkspace& call : by_rule.unknown) options.workspaces.emplace(call.key, workspace_by_rule(call));
  const GraphSchedule same = planned(kText, options);
  EXPECT_TRUE(same.unknown.empty());
  EXPECT_EQ(same.schedule, by_rule.schedule) << "nothing wants more";
  for (auto& [key, workspace] : options.workspaces)
    workspace = key.find("sort") == std::string::npos ? Workspace() : Workspace{100'000, 1'000};
  const GraphSchedule known = planned(kText, options);
  const Instruction& sort = *std::ranges::find(known.schedule.instructions, "sort", &Instruction::op);
  EXPECT_EQ(sort.scratch.bytes, aligned(100'000));
  EXPECT_EQ(sort.worker_scratch.bytes, aligned(1'000));
  EXPECT_EQ(known.schedule.instructions.front().scratch.bytes, 0U);
  EXPECT_GE(known.schedule.arena_bytes, aligned(100'000) + 2 * aligned(1'000)) << "two workers";
  EXPECT_EQ(known.schedule.arena_bytes, known.schedule.live_lower_bound_bytes);
  // Another thread count, another call.
  options.threads = 2;
  EXPECT_EQ(planned(kText, options).unknown.size(), 3U);
}

TEST(FromGraph, ADrawMakesTheStepTakeASeed) {
  const GraphSchedule plan = planned(R"(input %0: i64[2] = rng ""
%1: f32[8] = random_uniform(%0) {dtype=f32, shape=[8], stream=0} | forward "" group 0
return %1
)");
  EXPECT_TRUE(draws(plan.schedule));
  EXPECT_EQ(plan.schedule.instructions[0].kind, Kind::kSeed);
  EXPECT_EQ(plan.schedule.instructions[0].writes, plan.schedule.instructions[1].reads);
  EXPECT_EQ(plan.schedule.input_bytes(), 0U) << "it is none of the program's";
}

// ---- host code

TEST(FromGraph, APauseGivesAwayWhatIsMadeAndFindsTheProgramsMemoryUpToDate) {
  const GraphSchedule plan = planned(R"(input %0: f32[8] = buffer "mean"
input %1: f32[8] = buffer "last"
input %2: f32[8] = batch "0"
input %3: f32[8] = incoming "0"
%4: f32[8] = exp(%2) | forward ""
%5: f32[8] = add(%0, %4) | forward "" group 0
%6: f32[4, 2] = reshape(%4) {shape=[4, 2]} | forward ""
%7: f32[8], %8: f32[8], %9: f32[8] = host::pause(0, t[%4, undefined, %6], t[%5, %2, %3], [0, 1, 3]) writes 2, 3, 4 draws | forward ""
%10: f32[8] = mul(%9, %4) | backward ""
update %0 = %7
update %1 = %8
return %10
)");
  const Schedule& s = plan.schedule;
  const auto pause = std::ranges::find(s.instructions, Kind::kPause, &Instruction::kind);
  ASSERT_NE(pause, s.instructions.end());
  ASSERT_EQ(pause->reads.size(), 3U);
  EXPECT_EQ(buffer(s, pause->reads[0]).kind, Memory::kOwn);
  EXPECT_FALSE(pause->reads[1].valid());
  EXPECT_EQ(buffer(s, pause->reads[2]).kind, Memory::kOwn);
  EXPECT_NE(operand(s, pause->reads[2]).buffer, operand(s, pause->reads[0]).buffer) << "a view is a copy";
  EXPECT_EQ(pause->writes, (std::vector<OperandId>{s.inputs[0].operand, s.inputs[1].operand, s.inputs[3].operand}));
  const auto sum = std::ranges::find(s.instructions, "add", &Instruction::op);
  EXPECT_LT(sum, pause);
  EXPECT_EQ(operand(s, sum->writes[0]).buffer, operand(s, s.inputs[0].operand).buffer) << "in place";
  const auto is_copy_of_last = [&](const Instruction& one) {
    return one.kind == Kind::kCopy && one.writes[0] == s.inputs[1].operand;
  };
  EXPECT_LT(std::ranges::find_if(s.instructions, is_copy_of_last), pause);
  EXPECT_EQ(std::ranges::count_if(s.instructions, is_copy_of_last), 1);
  EXPECT_EQ(operand(s, std::ranges::find(s.instructions, "mul", &Instruction::op)->reads[0]).buffer,
            operand(s, s.inputs[3].operand).buffer);
  EXPECT_TRUE(s.inputs[0].written && s.inputs[1].written && !s.inputs[3].written);
}

TEST(FromGraph, AnOptimizerOnTheHostLeavesTheGradientThatItWasGiven) {
  const GraphSchedule plan = planned(R"(input %0: f32[8] = parameter "w"
input %1: f32[8] = batch "0"
%2: f32[8] = mul(%0, %1) | backward ""
%3: f32[8] = host::event(1, t[%2], t[%0], [0]) writes 1 draws | update ""
%4: f32[8] = exp(%3) | update ""
update %0 = %3
rebind gradient "w" %2
return %4
)");
  const Schedule& s = plan.schedule;
  ASSERT_EQ(s.instructions.size(), 3U);
  const Instruction& event = s.instructions[1];
  EXPECT_EQ(event.kind, Kind::kEvent);
  EXPECT_EQ(event.event, 1U);
  EXPECT_EQ(event.writes, std::vector<OperandId>{s.inputs[0].operand});
  EXPECT_EQ(s.outputs[0].operand, event.reads[0]);
  EXPECT_EQ(operand(s, s.instructions[2].reads[0]).buffer, operand(s, s.inputs[0].operand).buffer) << "read anew";
}

TEST(FromGraph, RefusesToReadWhatHostCodeHasChanged) {
  constexpr std::string_view kText = R"(input %0: f32[8] = parameter "w"
%1: f32[8] = host::event(0, t[], t[%0], [0]) writes 0 draws | update ""
%2: f32[8] = sub(%1, %0) | update ""
update %0 = %1
return %2
)";
  EXPECT_USER_ERROR(planned(kText), "what parameter 'w' held before host code changed it is read after that");
  constexpr std::string_view kDecides = R"(input %0: f32[] = parameter "w"
%1: f32[] = host::event(0, t[], t[%0], [0]) writes 0 draws | update ""
%2: bool[] = lt(%1, %1) | update ""
guard %2
)";
  EXPECT_USER_ERROR(planned(kDecides), "a decision depends on what host code does");
}

TEST(FromGraph, GeneratorsOfTheProgramAndOfTheStepHaveASeedEach) {
  Trace trace;
  trace.generators = {"default", "noise", "step 2"};
  trace.states = {{GeneratorId(2), GeneratorState::Kind::kConstant, {}, "bytes"}};
  trace.loads = {{CallId(0), StateId(0)}};
  trace.outputs.resize(3);
  const GraphSchedule plan = planned(R"(input %0: i64[2] = rng ""
input %1: i64[2] = rng "1"
input %2: i64[2] = rng "2"
%3: f32[8] = random_uniform(%0) {dtype=f32, shape=[8], stream=0} | forward "" group 0
%4: f32[8] = random_uniform(%1) {dtype=f32, shape=[8], stream=0} | forward "" group 1
%5: f32[8] = random_uniform(%2) {dtype=f32, shape=[8], stream=0} | forward "" group 2
return %3
return %4
return %5
)",
                                     {.trace = &trace});
  const Schedule& s = plan.schedule;
  EXPECT_EQ(s.generators, trace.generators);
  EXPECT_EQ(s.states, std::vector<std::string>{"bytes"});
  EXPECT_EQ(s.instructions[0].kind, Kind::kLoadGenerator);
  EXPECT_EQ(s.instructions[0].generator, 2U);
  for (uint32_t g = 0; g < 3; ++g) {
    EXPECT_EQ(s.instructions[1 + g].kind, Kind::kSeed);
    EXPECT_EQ(s.instructions[1 + g].generator, g);
  }
  trace.loads = {{CallId(3), StateId(0)}};
  trace.outputs.resize(1);
  constexpr std::string_view kAtensOwn =
      R"(%0: i64[4] = aten::randperm.generator(4, generator(2)) -> % draws | forward ""
return %0
)";
  EXPECT_USER_ERROR(planned(kAtensOwn, {.trace = &trace}), "draws from a generator whose state is put back");
}

// ---- random steps

struct Machine {
  const char* name;
  Features features;
  bool generates;
};
void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }  // NOLINT: googletest's name

class RandomSteps : public ::testing::TestWithParam<Machine> {
 protected:
  static Graph step(uint64_t seed) { return test::random_fused_step(seed, matmul_rule(GetParam().features)); }
  static GraphScheduleOptions options(const Graph& graph) {
    GraphScheduleOptions out{.features = GetParam().features, .threads = 2};
    if (GetParam().generates) return out;
    for (const GroupGraph& group : extract_groups(graph))
      if (!is_matmul_group(group.graph) || has_epilogue(group.graph)) out.refused.emplace(group.group, "none");
    return out;
  }
};

// Buffers of the arena that begin where another one ends, in the instruction that reads that last.
size_t taken_over(const Schedule& s) {
  std::vector<size_t> first(s.buffers.size(), SIZE_MAX), last(s.buffers.size(), 0);
  for (size_t i = 0; i < s.instructions.size(); ++i) {
    for (OperandId read : s.instructions[i].reads) last[operand(s, read).buffer.index()] = i;
    for (OperandId write : s.instructions[i].writes) {
      size_t& begin = first[operand(s, write).buffer.index()];
      begin = std::min(begin, i);
    }
  }
  size_t count = 0;
  for (size_t a = 0; a < s.buffers.size(); ++a)
    for (size_t b = 0; b < s.buffers.size(); ++b)
      if (a != b && s.buffers[a].kind == Memory::kArena && s.buffers[b].kind == Memory::kArena &&
          s.buffers[a].offset == s.buffers[b].offset && first[b] != SIZE_MAX && last[a] == first[b] &&
          first[a] < last[a])
        ++count;
  return count;
}

TEST_P(RandomSteps, AreGoodAndTheSameEveryTime) {
  size_t over = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = step(seed);
    const GraphSchedule plan = schedule_graph(graph, options(graph));
    const Schedule& s = plan.schedule;
    EXPECT_EQ(plan.one_by_one.empty(), GetParam().generates) << seed;
    EXPECT_EQ(s.programs.empty(), !GetParam().generates) << seed;
    verify(s);
    over += taken_over(s);
    const Schedule again = schedule_graph(graph, options(graph)).schedule;
    EXPECT_EQ(again, s) << seed;
    EXPECT_EQ(to_text(again), to_text(s)) << seed;
    EXPECT_EQ(hash_of(again), hash_of(s)) << seed;
    EXPECT_EQ(parse_schedule(to_text(s)), s) << seed;
  }
  EXPECT_GT(over, GetParam().generates ? 20U : 0U);
}

TEST_P(RandomSteps, EveryNodeRunsOnce) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = step(seed);
    const GraphScheduleOptions with = options(graph);
    const GraphSchedule plan = schedule_graph(graph, with);
    std::set<uint32_t> needed, apart;
    for (const GroupGraph& group : extract_groups(graph))
      if (!group.outputs.empty()) needed.insert(group.group);
    std::map<std::string, int> due;  // by op: how often it is still to run by itself
    std::set<uint32_t> ran;
    for (size_t i = 0; i < plan.schedule.instructions.size(); ++i) {
      const Instruction& instruction = plan.schedule.instructions[i];
      if (instruction.kind == Kind::kCopy || instruction.kind == Kind::kSeed || instruction.kind == Kind::kGuard)
        continue;
      if (plan.group_of[i] == UINT32_MAX)
        --due[instruction.op];
      else
        EXPECT_TRUE(ran.insert(plan.group_of[i]).second)
            << "group " << plan.group_of[i] << " runs twice, seed " << seed;
    }
    std::ranges::set_difference(needed, ran, std::inserter(apart, apart.end()));
    for (uint32_t group : apart)
      EXPECT_TRUE(with.refused.contains(group) || !GetParam().features.f32) << seed << " leaves out " << group;
    for (const Node& node : graph.nodes)
      if (!node.group || apart.contains(*node.group)) ++due[node.op];
    for (const auto& [op, count] : due)
      EXPECT_TRUE(count == 0 || (count > 0 && op_def(op).has(Trait::kView))) << seed << ": " << op << " " << count;
  }
}

TEST_P(RandomSteps, OnlyUpdatesLieInTheProgramsMemory) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = step(seed);
    const Schedule s = schedule_graph(graph, options(graph)).schedule;
    std::vector<bool> updated(s.inputs.size(), false);
    for (const GraphOutput& output : graph.outputs)
      if (output.kind == GraphOutput::Kind::kUpdate) updated[output.input] = true;
    for (size_t i = 0; i < s.inputs.size(); ++i) EXPECT_EQ(s.inputs[i].written, updated[i]) << seed;
    for (const Instruction& instruction : s.instructions) {
      if (instruction.kind == Kind::kSeed) continue;
      for (OperandId write : instruction.writes) {
        if (buffer(s, write).kind != Memory::kInput) continue;
        EXPECT_TRUE(updated[buffer(s, write).input]) << seed;
        EXPECT_TRUE(instruction.kind == Kind::kCopy || graph.inputs[buffer(s, write).input].strides.empty())
            << "kernels write dense memory, seed " << seed;
      }
    }
    for (const ScheduleOutput& output : s.outputs)
      EXPECT_EQ(buffer(s, output.operand).kind, Memory::kOwn) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, RandomSteps,
                         ::testing::Values(Machine{"all", kBlocked, true}, Machine{"generated", {}, true},
                                           Machine{"blocked", kBlocked, false}, Machine{"aten", {}, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepc
