// A step planned and priced for a GPU that is not here.
#include "plan/target_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/text.h"
#include "cost/named_target.h"
#include "plan/gpu_allocations.h"
#include "plan/plan_graph.h"
#include "plan/rank_graph.h"
#include "schedule/verify_kernels.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

constexpr uint64_t kMiB = 1 << 20;

Schedule gpu_schedule(const std::string& graph, const std::string& card = "h200") {
  PlanGraphOptions options;
  options.target = named_target(card);
  Schedule schedule = plan_graph(parse_graph("stepc.graph 1\n" + graph), nullptr, options).plan.schedule;
  verify(schedule);
  verify_kernels(schedule);
  return schedule;
}

std::string product(int64_t rows, int64_t inner, int64_t columns, std::string_view dtype) {
  return str(
      "input %0: {3}[{0}, {1}] = batch \"0\"\ninput %1: {3}[{1}, {2}] = parameter \"w\"\n"
      "%2: {3}[{0}, {2}] = matmul(%0, %1) {{transpose_a=false, transpose_b=false}} | forward \"\"\nreturn %2\n",
      rows, inner, columns, dtype);
}

double seconds_of(const std::string& graph, const std::string& card = "h200") {
  return simulate(gpu_schedule(graph, card), named_target(card)).seconds;
}

TEST(TargetPlan, AKernelTakesItsArithmeticOrItsTrafficWhicheverIsMore) {
  const Target h200 = named_target("h200");
  // 4096^3: arithmetic.
  const double flops = 2.0 * 4096 * 4096 * 4096;
  const double rate = matmul_rate(h200.rates, KernelOwner::kLibrary, DType::kBF16, 4096, 4096, 4096);
  EXPECT_NEAR(seconds_of(product(4096, 4096, 4096, "bf16")), flops / rate + 1e-6, 1e-9);
  EXPECT_NEAR(seconds_of(product(4096, 4096, 4096, "f16")), flops / rate + 1e-6, 1e-9) << "tensor cores take both";
  EXPECT_GT(seconds_of(product(4096, 4096, 4096, "f32")), 10 * flops / rate);
  // An elementwise kernel: traffic.
  const std::string stream =
      "input %0: bf16[67108864] = batch \"0\"\n%1: bf16[67108864] = tanh(%0) | forward \"\"\nreturn %1\n";
  EXPECT_NEAR(seconds_of(stream), 2 * 2 * 67108864 / h200.bytes_per_second + 1e-6, 1e-9);
  EXPECT_NEAR(seconds_of(stream) / seconds_of(stream, "h100"), 3.35 / 4.8, 0.01);
}

// Packed rows of causal attention and its gradients, whose mask compares documents.
std::string packed_attention(int64_t tokens) {
  return str(
      "input %0: bf16[2, 4, {0}, 64] = batch \"q\"\ninput %1: bf16[2, 4, {0}, 64] = batch \"g\"\n"
      "input %2: i64[2, {0}] = batch \"documents\"\n"
      "%3: i64[{0}] = iota() {{dim=0, dtype=i64, shape=[{0}], start=0, step=1}} | forward \"\"\n"
      "%4: i64[{0}, 1] = reshape(%3) {{shape=[{0}, 1]}} | forward \"\"\n"
      "%5: bool[{0}, {0}] = le(%3, %4) | forward \"\"\n"
      "%6: i64[2, 1, {0}, 1] = reshape(%2) {{shape=[2, 1, {0}, 1]}} | forward \"\"\n"
      "%7: i64[2, 1, 1, {0}] = reshape(%2) {{shape=[2, 1, 1, {0}]}} | forward \"\"\n"
      "%8: bool[2, 1, {0}, {0}] = eq(%6, %7) | forward \"\"\n"
      "%9: bool[2, 1, {0}, {0}] = logical_and(%5, %8) | forward \"\"\n"
      "%10: bf16[] = full() {{dtype=bf16, shape=[], value=0.0}} | forward \"\"\n"
      "%11: bf16[] = full() {{dtype=bf16, shape=[], value=-inf}} | forward \"\"\n"
      "%12: bf16[2, 1, {0}, {0}] = where(%9, %10, %11) | forward \"\"\n"
      "%13: bf16[2, 4, {0}, 64], %14: f32[2, 4, {0}] = attention(%0, %0, %0, %12) {{causal=false, scale=0.125}} | "
      "forward \"\"\n"
      "%15: bf16[2, 4, {0}, 64], %16: bf16[2, 4, {0}, 64], %17: bf16[2, 4, {0}, 64] = attention_backward(%1, %0, %0, "
      "%0, %13, %14, %12) {{causal=false, scale=0.125}} | backward \"\"\nreturn %15\nreturn %16\nreturn %17\n",
      tokens);
}

TEST(TargetPlan, PackedDocumentsAreAttentionOfVariableLengthsWithoutAMask) {
  constexpr int64_t kTokens = 8192;
  const Graph graph = parse_graph("stepc.graph 1\n" + packed_attention(kTokens));
  const auto plan = [&](std::optional<double> document_tokens) {
    PlanGraphOptions options;
    options.target = named_target("h100");
    options.document_tokens = document_tokens;
    return plan_graph(graph, nullptr, options).plan.schedule;
  };
  const auto attention_seconds = [](const Schedule& schedule) {
    const Timeline timeline = simulate(schedule, named_target("h100"));
    double seconds = 0;
    for (size_t i = 0; i < schedule.instructions.size(); ++i)
      if (schedule.instructions[i].op.starts_with("attention")) seconds += timeline.entries[i].seconds();
    return seconds;
  };
  const Schedule worst = plan({});
  verify(worst);
  verify_kernels(worst);
  for (const Instruction& one : worst.instructions) {
    if (!one.op.starts_with("attention")) continue;
    EXPECT_EQ(one.why, "flash attention of variable lengths");
  }
  for (const Operand& operand : worst.operands)
    EXPECT_FALSE(operand.sizes.size() == 4 && operand.sizes[2] == kTokens && operand.sizes[3] == kTokens);
  EXPECT_LT(worst.peak_bytes(), uint64_t{2} * kTokens * kTokens) << "a mask alone has more, even of bools";
  EXPECT_TRUE(std::ranges::any_of(worst.instructions, [](const Instruction& one) {
    return one.kind == Instruction::Kind::kGuard;
  })) << "documents that do not lie in a row run as recorded";
  // A row of one document takes longest: what causal attention takes. Short documents take their share.
  std::string causal = packed_attention(kTokens);
  for (const auto& [from, to] : {std::pair<std::string, std::string>(", %12)", ")"), {"causal=false", "causal=true"}})
    for (size_t at = causal.find(from); at != std::string::npos; at = causal.find(from))
      causal.replace(at, from.size(), to);
  EXPECT_NEAR(attention_seconds(worst), attention_seconds(gpu_schedule(causal, "h100")), 1e-6);
  EXPECT_NEAR(attention_seconds(plan(kTokens)), attention_seconds(worst), 1e-9);
  EXPECT_LT(attention_seconds(plan(512)), 0.5 * attention_seconds(worst));
  EXPECT_GT(attention_seconds(plan(512)), attention_seconds(plan(128)));
}

TEST(TargetPlan, AMatmulInFloat8TakesHalfTheTimeOfBf16AndItsCopies) {
  const auto scaled = [](bool transpose_b) {
    return str(
        "input %0: f8e5m2[4096, 4096] = batch \"x\"\ninput %1: f8e4m3[4096, 4096] = batch \"y\"\n"
        "input %2: f32[1, 1] = batch \"scales\"\n%3: bf16[4096, 4096] = scaled_matmul(%0, %1, %2, %2) {{dtype=bf16, "
        "transpose_a=false, transpose_b={}}} | forward \"\"\nreturn %3\n",
        transpose_b);
  };
  const double bf16 = seconds_of(product(4096, 4096, 4096, "bf16"));
  EXPECT_NEAR(seconds_of(scaled(true)) / bf16, 0.5, 0.05);
  EXPECT_NEAR(seconds_of(scaled(false)) - seconds_of(scaled(true)),
              2.0 * 4096 * 4096 / named_target("h200").bytes_per_second, 1e-9);
  EXPECT_EQ(gpu_schedule(scaled(true)).instructions.back().why, "cuBLASLt in float8");
  EXPECT_GT(seconds_of(scaled(true), "a100"), seconds_of(product(4096, 4096, 4096, "f32"), "a100"))
      << "a card without float8 decodes its operands";
}

// A layer of bf16 with its gradients, and what scales its operands.
TEST(TargetPlan, ALayerInFloat8IsFasterWhereItIsLarge) {
  const std::string layer =
      "input %0: bf16[8192, 4096] = batch \"x\"\ninput %1: bf16[8192, 4096] = parameter \"up.weight\"\n"
      "input %2: bf16[8192, 8192] = batch \"gradient\"\n"
      "%3: bf16[8192, 8192] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward \"up\"\n"
      "%4: bf16[8192, 4096] = matmul(%2, %1) {transpose_a=false, transpose_b=false} | backward \"up\"\n"
      "%5: bf16[8192, 4096] = matmul(%2, %0) {transpose_a=true, transpose_b=false} | backward \"up\"\n"
      "return %3\nreturn %4\nreturn %5\n";
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise}) {
    PlanGraphOptions options;
    options.target = named_target("h100");
    options.passes.settings.fp8 = recipe;
    const Schedule schedule = plan_graph(parse_graph("stepc.graph 1\n" + layer), nullptr, options).plan.schedule;
    EXPECT_EQ(std::ranges::count(schedule.instructions, "scaled_matmul", &Instruction::op), 3) << name_of(recipe);
    const double speedup = seconds_of(layer, "h100") / simulate(schedule, options.target).seconds;
    EXPECT_GT(speedup, 1.2) << name_of(recipe);
    EXPECT_LT(speedup, 2.0) << name_of(recipe);
  }
}

TEST(TargetPlan, AttentionAndLossOfGpusCountTheirScratch) {
  const Schedule attention = gpu_schedule(
      "input %0: bf16[2, 4, 64, 16] = batch \"q\"\ninput %1: bf16[2, 2, 64, 16] = batch \"k\"\n"
      "input %2: bf16[2, 4, 64, 16] = batch \"g\"\n"
      "%3: bf16[2, 4, 64, 16], %4: f32[2, 4, 64] = attention(%0, %1, %1) {causal=true, scale=0.25} | forward \"\"\n"
      "%5: bf16[2, 4, 64, 16], %6: bf16[2, 2, 64, 16], %7: bf16[2, 2, 64, 16] = attention_backward(%2, %0, %1, %1, %3, "
      "%4) {causal=true, scale=0.25} | backward \"\"\nreturn %5\nreturn %6\nreturn %7\n");
  const auto find = [](const Schedule& schedule, std::string_view op) {
    const auto one = std::ranges::find(schedule.instructions, op, &Instruction::op);
    EXPECT_NE(one, schedule.instructions.end()) << op;
    return *one;
  };
  const auto scratch = [](const Schedule& schedule, const Instruction& one) {
    uint64_t bytes = one.scratch.bytes;
    for (const PlannedAllocation& allocated : one.allocations) bytes += allocated.bytes;
    for (OperandId result : one.writes) bytes -= static_cast<uint64_t>(bytes_of(schedule.operands[result.index()]));
    return bytes;
  };
  EXPECT_EQ(find(attention, "attention").kind, Instruction::Kind::kOp);
  EXPECT_EQ(find(attention, "attention").why, "cuDNN's attention, or flash attention");
  // dq in f32, a sum a query, dk and dv of each of four heads.
  EXPECT_EQ(scratch(attention, find(attention, "attention_backward")),
            4U * 2 * 4 * 64 * 16 + 4U * 2 * 4 * 64 + 2 * 2U * 2 * 4 * 64 * 16);
  const Schedule loss = gpu_schedule(
      "input %0: bf16[4096, 256] = batch \"hidden\"\ninput %1: bf16[32000, 256] = parameter \"head\"\n"
      "input %2: i64[4096] = batch \"labels\"\n"
      "%3: f32[4096], %4: f32[4096], %5: bf16[0, 256], %6: bf16[0, 256] = linear_cross_entropy(%0, %1, %2) "
      "{frozen=true, gradient_dtype=bf16, ignore_index=-100} | forward \"loss\"\nreturn %3\n");
  const Instruction one = find(loss, "linear_cross_entropy");
  EXPECT_EQ(one.why, "cuBLASLt and a row kernel, a chunk of tokens at a time");
  EXPECT_EQ(one.scratch.bytes, 2U * 1024 * 32000 + 32 * kMiB);
  EXPECT_EQ(one.kind, Instruction::Kind::kLoss);
  ASSERT_TRUE(one.loss.has_value());
  EXPECT_EQ(one.loss->tokens, 1024);
  EXPECT_EQ(one.loss->last, kNoProgram);
  EXPECT_EQ(simulate(loss, named_target("h200")).entries.back().work, WorkClass::kLoss);
}

TEST(TargetPlan, MatmulsOfGpusComputeSums) {
  const std::string products =
      "input %0: bf16[4096, 512] = batch \"g\"\ninput %1: bf16[4096, 1024] = batch \"x\"\n"
      "input %2: bf16[1024] = parameter \"bias\"\ninput %3: bf16[4096, 1024] = batch \"y\"\n"
      "%4: bf16[512, 1024] = matmul(%0, %1) {transpose_a=true, transpose_b=false} | backward \"\"\n"
      "%5: bf16[512, 1024] = matmul(%0, %3) {transpose_a=true, transpose_b=false} | backward \"\"\n";
  const Schedule summed =
      gpu_schedule(products +
                   "%6: bf16[512, 1024] = add(%4, %5) | backward \"\"\n%7: bf16[512, 1024] = add(%6, %2) | "
                   "backward \"\"\nreturn %7\n");
  EXPECT_EQ(summed.count(Instruction::Kind::kGenerated), 1U) << "a bias that is added to a sum";
  const auto added = std::ranges::find(summed.instructions, "matmul_add", &Instruction::op);
  ASSERT_NE(added, summed.instructions.end()) << to_text(summed);
  EXPECT_EQ(added->kind, Instruction::Kind::kOp);
  EXPECT_EQ(added->why, "cuBLASLt, with beta = 1");
  const auto place = [&](OperandId id) { return summed.buffers[summed.operands[id.index()].buffer.index()].offset; };
  EXPECT_EQ(place(added->writes[0]), place(added->reads[0])) << "it is summed where the first product lies";
  EXPECT_EQ(simulate(summed, named_target("h100")).entries[1].work, WorkClass::kMatmulLibrary);
  const Schedule biased = gpu_schedule(
      "input %0: bf16[4096, 512] = batch \"x\"\ninput %1: bf16[1024, 512] = parameter \"weight\"\n"
      "input %2: bf16[1024] = parameter \"bias\"\n"
      "%3: bf16[4096, 1024] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward \"\"\n"
      "%4: bf16[4096, 1024] = add(%3, %2) | forward \"\"\nreturn %4\n");
  ASSERT_EQ(biased.instructions.size(), 1U) << to_text(biased);
  EXPECT_EQ(biased.instructions[0].op, "matmul_bias");
  EXPECT_EQ(biased.instructions[0].why, "cuBLASLt, with an epilogue");
}

TEST(TargetPlan, AGpusScheduleSaysItsDeviceAndReadsBack) {
  const Schedule schedule = gpu_schedule(product(64, 64, 64, "bf16"), "a100");
  const std::string text = to_text(schedule);
  EXPECT_TRUE(text.starts_with("stepc.schedule 1\ndevice cuda sm_80\nthreads 1\n")) << text;
  EXPECT_EQ(parse_schedule(text), schedule);
  EXPECT_NE(text.find("why \"cuBLASLt\""), std::string::npos) << text;
  EXPECT_NE(hash_of(schedule), hash_of(gpu_schedule(product(64, 64, 64, "bf16"), "h100")));
  EXPECT_EQ(hash_of(gpu_schedule(product(64, 64, 64, "bf16"), "h200")),
            hash_of(gpu_schedule(product(64, 64, 64, "bf16"), "h100")))
      << "rates change no plan";
}

// y = relu(x @ w); z = x @ y; returns sum(z)
constexpr std::string_view kVirtualStep = R"(stepc.trace 1
storage s0 bytes=32 external
storage s1 bytes=32 external
storage s2 bytes=32
storage s3 bytes=32
storage s4 bytes=32
storage s5 bytes=4 escapes
%0: bf16[4, 4] @s0 = parameter "w"
%1: bf16[4, 4] @s1 = batch "0"
call 0 %2: bf16[4, 4] @s2 = aten::mm(%1, %0) | forward "layer"
call 1 %3: bf16[4, 4] @s3 = aten::relu(%2) | forward "layer"
call 2 %4: bf16[4, 4] @s4 = aten::mm(%1, %3) | forward "layer"
call 3 %5: f32[] @s5 = aten::sum(%4, dtype:f32) | forward ""
return %5
ticks 0
)";

TEST(TargetPlan, EagersChoicesAreTheCallsWithAGpusWorkspaces) {
  const Trace trace = parse_trace(kVirtualStep);
  const Trace on_gpu = with_gpu_allocations(trace, {.sm = 90});
  verify(on_gpu);
  std::vector<uint64_t> bytes;
  for (const Allocation& one : on_gpu.allocations) bytes.push_back(one.bytes);
  EXPECT_EQ(bytes, (std::vector<uint64_t>{32, 32 * kMiB, 32, 32, 32 * kMiB, 4}));
  const TargetPlan plan = plan_for_target(trace, named_target("h100"), true);
  EXPECT_EQ(plan.schedule.instructions.size(), 4);
  EXPECT_FALSE(plan.memory.has_value());
  // Two tensors beside the second product's workspace, and the result.
  EXPECT_EQ(plan.schedule.arena_bytes, 32 * kMiB + 2 * 64);
  EXPECT_EQ(plan.needed_bytes(), plan.schedule.peak_bytes() + 2 * 64);
  EXPECT_GT(plan.timeline.seconds, 4e-6) << "four kernels with next to nothing to do";
  EXPECT_LT(plan.timeline.seconds, 2e-5);
  // The text says all that was asked for, and still is a Schedule.
  EXPECT_EQ(parse_schedule(plan.text()), plan.schedule);
  for (const char* part : {"# planned for NVIDIA H100 80GB (cuda sm_90)", "# memory ", "# predicted ", "# sm = 90"})
    EXPECT_NE(plan.text().find(part), std::string::npos) << part << plan.text();
  const TargetPlan fused = plan_for_target(trace, named_target("h100"), false);
  EXPECT_TRUE(fused.memory.has_value());
  EXPECT_EQ(parse_schedule(fused.text()), fused.schedule);
}

TEST(TargetPlan, AScheduleIsPricedForItsKindOfMachineAlone) {
  const Schedule of_gpu = gpu_schedule(product(64, 64, 64, "bf16"));
  EXPECT_USER_ERROR(simulate(of_gpu, {}), "the Schedule is planned for a GPU and cannot be priced for a CPU");
  EXPECT_USER_ERROR(simulate(Schedule(), named_target("h100")),
                    "the Schedule is planned for a CPU and cannot be priced for a GPU");
}

TEST(TargetPlan, ACallThatOnlyHasTheNameOfAttentionHasNoWorkspace) {
  const Trace trace = parse_trace(
      "stepc.trace 1\nstorage s0 bytes=32 external\nstorage s1 bytes=32 escapes\n"
      "%0: bf16[4, 4] @s0 = batch \"0\"\n"
      "call 0 %1: bf16[4, 4] @s1 = aten::_scaled_dot_product_flash_attention_for_cpu_backward(%0) | backward \"\"\n"
      "return %1\nticks 0\n");
  EXPECT_EQ(with_gpu_allocations(trace, {.sm = 90}).allocations.size(), 1);
  EXPECT_GT(plan_for_target(trace, named_target("h100"), true).timeline.seconds, 0);
}

// A batch of the host's goes to the card, where the weight is.
constexpr std::string_view kFromHost = R"(stepc.trace 1
device cuda:0
storage s0 bytes=262144 external
storage s1 bytes=65536 external device
storage s2 bytes=262144 device
storage s3 bytes=4096 device
storage s4 bytes=4 escapes device
%0: f32[64, 1024] @s0 = batch "0"
%1: f32[1024, 16] @s1 = parameter "w"
call 0 %2: f32[64, 1024] @s2 = aten::_to_copy(%0, none, none, device:cuda:0, none, false, none) | forward ""
call 1 %3: f32[64, 16] @s3 = aten::mm(%2, %1) | forward "layer"
call 2 %4: f32[] @s4 = aten::sum(%3, none) | forward ""
return %4
ticks 0
)";

TEST(TargetPlan, WhatLiesInTheHostsMemoryIsCountedApart) {
  for (const bool as_recorded : {false, true}) {
    const TargetPlan plan = plan_for_target(parse_trace(kFromHost), named_target("h100"), as_recorded);
    const Schedule& schedule = plan.schedule;
    EXPECT_EQ(schedule.device, "cuda:0");
    EXPECT_EQ(schedule.input_bytes() + schedule.peak_bytes() - plan.needed_bytes(), 262144U);
    EXPECT_GE(plan.needed_bytes(), 65536U + 262144 + 4096) << "the weight, the batch on the card, the product";
    EXPECT_NE(plan.summary().find(", 256.0 KiB of these in the host's memory"), std::string::npos) << plan.summary();
    EXPECT_EQ(parse_schedule(plan.text()), schedule);
    if (as_recorded) continue;
    EXPECT_EQ(plan.memory->at_peak[static_cast<size_t>(ByteClass::kBatch)], 0U);
    EXPECT_EQ(plan.memory->at_peak[static_cast<size_t>(ByteClass::kParameters)], 65536U);
  }
  // Where a CPU is asked for, all is its memory.
  const TargetPlan on_cpu = plan_for_target(parse_trace(kFromHost), {}, false);
  EXPECT_EQ(on_cpu.schedule.device, "");
  EXPECT_EQ(on_cpu.needed_bytes(), on_cpu.schedule.input_bytes() + on_cpu.schedule.peak_bytes());
}

// What a rank's functions are cut from is made as the step of one process is.
TEST(TargetPlan, ARanksStepTakesDocumentsAsItsMachineDoes) {
  const Graph graph = parse_graph("stepc.graph 1\n" + packed_attention(64));
  const auto count = [](const Graph& of, GraphOutput::Kind kind) {
    return std::ranges::count(of.outputs, kind, &GraphOutput::kind);
  };
  for (const char* card : {"h100", ""}) {
    const Target target = *card == 0 ? Target() : named_target(card);
    const Graph local = rank_graph(graph, {}, target.features);
    EXPECT_EQ(count(local, GraphOutput::Kind::kGuard), *card == 0 ? 0 : 1) << card;
    for (const GraphTensor& tensor : local.tensors)
      EXPECT_LT(element_count(tensor.type.shape), 2 * 4 * 64 * 64 + 1) << "a mask";
    PlanGraphOptions options;
    options.target = target;
    const auto said = [](const Schedule& schedule) {
      std::vector<std::string> out;
      for (const Instruction& one : schedule.instructions)
        out.push_back(str("{} {}: {}", name_of(one.kind), one.op, one.why));
      return out;
    };
    const Schedule whole = plan_graph(graph, nullptr, options).plan.schedule;
    leave_out_what_is_done(options.passes);
    EXPECT_EQ(said(plan_graph(local, nullptr, options).plan.schedule), said(whole)) << card;
  }
}

TEST(TargetPlan, WhatIsLargerThanTheGpuIsSaid) {
  Target small = named_target("h100");
  small.gpu->memory_bytes = 1024;
  const TargetPlan plan = plan_for_target(parse_trace(kVirtualStep), small, true);
  EXPECT_NE(plan.summary().find(": too little"), std::string::npos) << plan.summary();
}

}  // namespace
}  // namespace stepc
