// Which kernel runs what, as text, and how much scratch memory it needs.
#include "kernels/kernel_choice.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "base/check.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "ops/rules/shape_rules.h"

namespace stepc {
namespace {

constexpr Features kAmd{.bf16 = true, .f32 = true, .avx512 = true};
constexpr Features kIntel{.bf16 = true, .f32 = true, .avx512 = true, .intel = true};
constexpr Features kNone{};
constexpr int kThreads = 3;

TensorLayout lying(DType dtype, const Shape& shape, const Shape& strides) { return {{dtype, shape}, strides}; }
TensorLayout dense(DType dtype, const Shape& shape) { return lying(dtype, shape, contiguous_strides(shape)); }

Node node_of(std::string op, Attrs attrs) {
  Node node;
  node.attrs = complete_attrs(op_def(op), std::move(attrs));
  node.op = std::move(op);
  return node;
}
Node matmul(bool transpose_a, bool transpose_b) {
  return node_of("matmul", {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
}

// "matmul 0 by 1' | bf16 on the blocked kernel"
std::string text_of(const KernelChoice& choice) {
  constexpr std::string_view kKinds[] = {"none", "generated",  "nodes", "matmul", "attention",
                                         "loss", "collective", "wait",  "aten"};
  std::string text(kKinds[static_cast<size_t>(choice.kind)]);
  if (choice.matmul) {
    const MatmulCall& call = *choice.matmul;
    text += str(" {}{} by", call.left, call.transposed ? "'" : "");
    for (const auto& [right, transposed] : call.products) text += str(" {}{}", right, transposed ? "'" : "");
    if (!call.epilogue_programs.empty()) text += ", epilogues";
    for (uint32_t program : call.epilogue_programs) text += program == kNoProgram ? " -" : str(" {}", program);
    for (const TileBuffer& in : call.epilogue_inputs)
      text += str(", in {}({}, {})", in.place, in.row_stride, in.column_stride);
    for (const TileBuffer& out : call.epilogue_outputs)
      text += out.is_share ? str(", share {}", out.place)
                           : str(", out {}({}, {})", out.place, out.row_stride, out.column_stride);
  }
  if (!choice.programs.empty()) text += str(", {} programs", choice.programs.size());
  for (const auto& [read, write] : choice.in_place) text += str(", {} may be {}", write, read);
  return text + " | " + choice.why;
}

std::string text_of(const Node& node, const std::vector<TensorLayout>& inputs, const Features& features) {
  return text_of(choose_kernel(node, inputs, features, kThreads));
}

TEST(KernelChoice, RanksDoCollectivesTogether) {
  const Attrs group = {{"axes", Shape{0}}, {"ranks", int64_t{2}}};
  Attrs reduced = group;
  reduced.set("reduce", std::string("sum"));
  const TensorLayout parts = dense(DType::kBF16, {2, 100}), across = lying(DType::kBF16, {2, 100}, {1, 2});
  EXPECT_EQ(text_of(node_of("all_gather", group), {parts}, kNone), "collective | from rank to rank");
  EXPECT_EQ(text_of(node_of("all_reduce", reduced), {parts}, kNone),
            "collective, 0 may be 0 | from rank to rank, each reduces a part in f32");
  EXPECT_EQ(text_of(node_of("reduce_scatter", reduced), {parts}, kNone),
            "collective | from rank to rank, each reduces a part in f32");
  const auto scratch = [&](const char* op, const TensorLayout& operand) {
    return choose_kernel(node_of(op, op == std::string("all_to_all") ? group : reduced), std::array{operand}, kNone,
                         kThreads)
        .scratch_bytes;
  };
  EXPECT_EQ(scratch("reduce_scatter", parts), 256U) << "one part of 100, aligned";
  EXPECT_EQ(scratch("reduce_scatter", dense(DType::kF64, {2, 100})), 832U);
  EXPECT_EQ(scratch("reduce_scatter", across), 256U + 448U) << "and a copy";
  EXPECT_EQ(scratch("all_reduce", across), 256U) << "whose copy lies where the result does";
  EXPECT_EQ(collective_scratch_bytes("all_reduce", {DType::kF32, {}}, 8), 64U) << "what 7 others send of one float";
  EXPECT_EQ(collective_scratch_bytes("all_reduce", {DType::kF32, {10}}, 4), 64U) << "3 of each";
  EXPECT_EQ(collective_scratch_bytes("reduce_scatter", {DType::kF32, {4, 0}}, 4), 0U);
  EXPECT_EQ(scratch("all_to_all", parts), 0U);
  Node reshard;
  reshard.op = "reshard";
  EXPECT_THROW(choose_kernel(reshard, std::array{parts}, kNone, kThreads), InternalError);
}

TEST(KernelChoice, AMatmulIsWhereItIsFaster) {
  const auto text = [](DType dtype, const Features& features) {
    return text_of(matmul(false, true), {dense(dtype, {200, 32}), dense(dtype, {96, 32})}, features);
  };
  EXPECT_EQ(text(DType::kBF16, kAmd), "matmul 0 by 1' | bf16 on the blocked kernel");
  EXPECT_EQ(text(DType::kBF16, kIntel), "matmul 0 by 1' | bf16 on the blocked kernel");
  EXPECT_EQ(text(DType::kF32, kAmd), "matmul 0 by 1' | f32 on the blocked kernel");
  EXPECT_EQ(text(DType::kF32, kIntel), "aten | f32: the library's matmul is faster on this CPU");
  EXPECT_EQ(text(DType::kBF16, kNone), "aten | bf16: this machine has no blocked matmul for it");
  EXPECT_EQ(text(DType::kF64, kAmd), "aten | f64 is not for the blocked kernel");
}

TEST(KernelChoice, AMatmulOfOperandsThatLieOtherwiseIsTheLibrarys) {
  const std::string other = "aten | the blocked kernel does not take operands that lie so";
  const TensorLayout right = dense(DType::kBF16, {32, 64});
  const auto of_left = [&](const TensorLayout& left, bool transposed = false) {
    return text_of(matmul(transposed, false), {left, right}, kAmd);
  };
  EXPECT_EQ(of_left(lying(DType::kBF16, {200, 32}, {1, 200})), "matmul 0 by 1 | bf16 on the blocked kernel");
  EXPECT_EQ(of_left(lying(DType::kBF16, {200, 32}, {40, 1})), "matmul 0 by 1 | bf16 on the blocked kernel");
  EXPECT_EQ(of_left(lying(DType::kBF16, {200, 32}, {64, 2})), other);
  EXPECT_EQ(of_left(dense(DType::kBF16, {0, 32})), other);
  EXPECT_EQ(text_of(matmul(false, false), {dense(DType::kBF16, {2, 5, 8}), dense(DType::kBF16, {2, 8, 5})}, kAmd),
            other);
  EXPECT_EQ(
      text_of(matmul(false, false), {dense(DType::kBF16, {5, 32}), lying(DType::kBF16, {32, 64}, {256, 2})}, kAmd),
      other);
  // A left operand that lies transposed is copied first: up to 16 MiB.
  const int64_t most = (int64_t{8} << 20) / 32;
  EXPECT_EQ(of_left(dense(DType::kBF16, {32, most}), true), "matmul 0' by 1 | bf16 on the blocked kernel");
  EXPECT_EQ(of_left(dense(DType::kBF16, {32, most + 1}), true), other);
  EXPECT_EQ(of_left(lying(DType::kBF16, {32, most + 1}, {1, 32}), true), "matmul 0' by 1 | bf16 on the blocked kernel");
}

TEST(KernelChoice, AMatmulsScratchIsTheCalls) {
  for (const bool transposed : {false, true}) {
    const std::vector<TensorLayout> inputs = {dense(DType::kBF16, transposed ? Shape{70, 300} : Shape{300, 70}),
                                              dense(DType::kBF16, {90, 70})};
    const blocked::Product one{90, {nullptr, 1, 70}};
    const blocked::Matmul call{.type = blocked::Number::kBf16,
                               .m = 300,
                               .k = 70,
                               .a = {nullptr, transposed ? 1 : 70, transposed ? 300 : 1},
                               .products = {&one, 1}};
    const KernelChoice choice = choose_kernel(matmul(transposed, true), inputs, kAmd, kThreads);
    EXPECT_GT(choice.scratch_bytes, 0U);
    EXPECT_EQ(choice.scratch_bytes, aligned(blocked::workspace_bytes(call, kThreads)));
    const std::optional<BoundMatmul> bound = bind_matmul(*choice.matmul, inputs, kAmd);
    ASSERT_TRUE(bound.has_value());
    EXPECT_EQ(bound->call.products.data(), bound->products.data());
    EXPECT_EQ(bound->call.a.row_stride, call.a.row_stride);
    EXPECT_EQ(bound->call.a.column_stride, call.a.column_stride);
    EXPECT_EQ(bound->products[0].b.row_stride, 1);
    EXPECT_EQ(bound->products[0].b.column_stride, 70);
  }
}

// ---- attention

Node attention(std::string op, bool causal = false) {
  return node_of(std::move(op), {{"scale", 0.25}, {"causal", causal}});
}

TEST(KernelChoice, AttentionIsBlockedInBothTypes) {
  const auto text = [](DType dtype, DType mask) {
    const TensorLayout one = dense(dtype, {2, 4, 6, 16});
    return text_of(attention("attention"), {one, one, one, dense(mask, {6, 6})}, kNone);
  };
  EXPECT_EQ(text(DType::kF32, DType::kBool), "attention | f32 on the blocked kernel");
  EXPECT_EQ(text(DType::kBF16, DType::kF32), "attention | bf16 on the blocked kernel");
  EXPECT_EQ(text(DType::kBF16, DType::kBF16), "attention | bf16 on the blocked kernel");
  EXPECT_EQ(text(DType::kF64, DType::kF64), "aten | the blocked attention does not take these operands");
  EXPECT_EQ(text(DType::kF32, DType::kF64), "aten | the blocked attention does not take these operands");
}

TEST(KernelChoice, AttentionReadsHeadsThatAreDense) {
  const TensorLayout q = lying(DType::kBF16, {2, 4, 6, 16}, {384, 16, 64, 1});
  const TensorLayout k = lying(DType::kBF16, {2, 2, 10, 16}, {320, 160, 1, 10});  // transposed: copied
  const TensorLayout v = lying(DType::kBF16, {2, 2, 10, 1}, {20, 10, 1, 7});
  const TensorLayout mask = lying(DType::kBool, {2, 1, 1, 10}, {30, 10, 10, 3});
  const std::vector<TensorLayout> inputs = {q, k, v, mask};
  const std::optional<BoundAttention> bound = bind_attention("attention", attention("attention", true).attrs, inputs);
  ASSERT_TRUE(bound.has_value());
  EXPECT_FALSE(bound->backward);
  EXPECT_EQ(bound->copied, (std::vector<uint32_t>{1}));
  const blocked::Attention& call = bound->call;
  EXPECT_EQ(call.batch, 2);
  EXPECT_EQ(call.heads, 4);
  EXPECT_EQ(call.key_heads, 2);
  EXPECT_EQ(call.queries, 6);
  EXPECT_EQ(call.keys, 10);
  EXPECT_EQ(call.dim, 16);
  EXPECT_EQ(call.value_dim, 1);
  EXPECT_EQ(call.scale, 0.25F);
  EXPECT_EQ(call.after, 0);
  EXPECT_EQ(call.before, -1);
  const auto strides = [](const blocked::HeadTensor& x) {
    return Shape{x.strides.batch, x.strides.head, x.strides.sequence};
  };
  EXPECT_EQ(strides(call.q), (Shape{384, 16, 64}));
  EXPECT_EQ(strides(call.k), (Shape{320, 160, 16}));
  EXPECT_EQ(strides(call.v), (Shape{20, 10, 1}));
  EXPECT_EQ(call.mask.kind, blocked::AttentionMask::Kind::kBool);
  EXPECT_EQ((Shape{call.mask.batch_stride, call.mask.head_stride, call.mask.query_stride, call.mask.key_stride}),
            (Shape{30, 0, 0, 3}));
  const KernelChoice choice = choose_kernel(attention("attention", true), inputs, kNone, kThreads);
  EXPECT_EQ(choice.scratch_bytes, aligned(blocked::workspace_bytes(call, kThreads)) + 2 * 2 * 10 * 16 * 2);
}

TEST(KernelChoice, AttentionsGradientsCopyWhatLiesOtherwise) {
  const TensorLayout heads = dense(DType::kF32, {2, 4, 6, 16});
  const TensorLayout transposed = lying(DType::kF32, {2, 4, 6, 16}, {384, 96, 1, 6});
  const TensorLayout sums = dense(DType::kF32, {2, 4, 6});
  const TensorLayout transposed_sums = lying(DType::kF32, {2, 4, 6}, {24, 1, 4});
  const Node node = attention("attention_backward");
  const auto copied = [&](const std::vector<TensorLayout>& inputs) {
    return bind_attention(node.op, node.attrs, inputs)->copied;
  };
  const std::vector<TensorLayout> plain = {heads, heads, heads, heads, heads, sums};
  const std::vector<TensorLayout> other = {
      transposed, heads, heads, transposed, transposed, transposed_sums, dense(DType::kBF16, {6})};
  EXPECT_EQ(copied(plain), (std::vector<uint32_t>{}));
  EXPECT_EQ(copied(other), (std::vector<uint32_t>{0, 3, 4, 5}));
  const BoundAttention bound = *bind_attention(node.op, node.attrs, other);
  EXPECT_TRUE(bound.backward);
  EXPECT_EQ(bound.call.mask.kind, blocked::AttentionMask::Kind::kBf16);
  EXPECT_EQ(bound.call.mask.query_stride, 0);
  EXPECT_EQ(bound.call.mask.key_stride, 1);
  const uint64_t own = aligned(blocked::backward_workspace_bytes(bound.call, kThreads));
  EXPECT_EQ(choose_kernel(node, plain, kNone, kThreads).scratch_bytes, own);
  EXPECT_EQ(choose_kernel(node, other, kNone, kThreads).scratch_bytes,
            own + 3 * bytes_of(heads) + aligned(bytes_of(sums)));
}

// ---- losses

Node loss(bool frozen, DType gradient = DType::kF32) {
  return node_of("linear_cross_entropy", {{"frozen", frozen}, {"gradient_dtype", gradient}});
}

TEST(KernelChoice, ALossIsBlockedWhereItsMatmulsAre) {
  const auto text = [](DType dtype, const Features& features, DType gradient = DType::kF32, int64_t classes = 50) {
    return text_of(loss(false, gradient),
                   {dense(dtype, {20, 16}), dense(dtype, {classes, 16}), dense(DType::kI64, {20})}, features);
  };
  const std::string other = "aten | the blocked loss does not take these operands on this machine";
  EXPECT_EQ(text(DType::kBF16, {.bf16 = true}), "loss | bf16 on the blocked kernel");
  EXPECT_EQ(text(DType::kBF16, {.f32 = true}), other);
  EXPECT_EQ(text(DType::kF32, {.f32 = true, .intel = true}), "loss | f32 on the blocked kernel");
  EXPECT_EQ(text(DType::kF32, {.bf16 = true}), other);
  EXPECT_EQ(text(DType::kF64, kAmd), other);
  EXPECT_EQ(text(DType::kBF16, kAmd, DType::kF64), other);
  EXPECT_EQ(text(DType::kBF16, kAmd, DType::kF32, 0), other);
}

TEST(KernelChoice, ALosssScratchDependsOnItsGradients) {
  const TensorLayout hidden = lying(DType::kBF16, {700, 16}, {20, 1});
  const TensorLayout weight = lying(DType::kBF16, {50, 16}, {1, 50});  // copied
  const TensorLayout targets = lying(DType::kI64, {700}, {2});         // copied
  const TensorLayout gradient = dense(DType::kF32, {700});
  const uint64_t copies = aligned(50 * 16 * 2) + aligned(700 * 8);
  for (const bool with_gradients : {false, true})
    for (const bool frozen : {false, true}) {
      std::vector<TensorLayout> inputs = {hidden, weight, targets};
      if (with_gradients) inputs.push_back(gradient);
      char somewhere = 0;
      blocked::LinearCrossEntropy call{.type = blocked::Number::kBf16,
                                       .tokens = 700,
                                       .width = 16,
                                       .classes = 50,
                                       .hidden_stride = 20,
                                       .weight_stride = 16,
                                       .hidden_gradient = with_gradients ? &somewhere : nullptr,
                                       .hidden_gradient_stride = 16,
                                       .weight_gradient = with_gradients && !frozen ? &somewhere : nullptr,
                                       .weight_gradient_type = blocked::Number::kBf16};
      call.chunk = blocked::frugal_chunk(call);
      const Node node = loss(frozen, DType::kBF16);
      const std::optional<BoundLoss> bound = bind_loss(node.attrs, inputs, kAmd);
      ASSERT_TRUE(bound.has_value());
      EXPECT_EQ(bound->wants_hidden, with_gradients);
      EXPECT_EQ(bound->wants_weight, with_gradients && !frozen);
      EXPECT_EQ(bound->copied, (std::vector<uint32_t>{1, 2}));
      EXPECT_EQ(bound->call.chunk, call.chunk);
      EXPECT_EQ(bound->call.hidden_stride, 20);
      EXPECT_EQ(bound->call.weight_stride, 16);
      EXPECT_EQ(choose_kernel(node, inputs, kAmd, kThreads).scratch_bytes,
                aligned(blocked::workspace_bytes(call, kThreads)) + copies);
    }
}

TEST(KernelChoice, AGpusLossRunsInChunks) {
  constexpr Features kGpu{.sm = 90};
  const auto choice = [&](int64_t tokens, size_t operands, bool frozen, DType gradient, DType dtype = DType::kBF16) {
    std::vector<TensorLayout> inputs = {lying(dtype, {tokens, 16}, {20, 1}), lying(dtype, {50, 16}, {1, 50}),
                                        dense(DType::kI64, {tokens})};
    while (inputs.size() < operands) inputs.push_back(dense(wide(dtype), {tokens}));
    return choose_kernel(loss(frozen, gradient), inputs, kGpu, 1);
  };
  const uint64_t logits = uint64_t{1024} * 50 * 2, sums = uint64_t{50} * 16 * 4;
  const KernelChoice whole = choice(2500, 5, false, DType::kBF16);
  EXPECT_EQ(text_of(whole), "loss, 2 programs | cuBLASLt and a row kernel, a chunk of tokens at a time");
  EXPECT_EQ(whole.loss, (ChunkedLoss{1024, 0, 1}));
  EXPECT_EQ(whole.scratch_bytes, logits + sums) << "the weight's gradient is summed in f32";
  EXPECT_EQ(whole.programs[0].buffers[0].count, 1024 * 50);
  EXPECT_EQ(whole.programs[1].buffers[0].count, 452 * 50);
  const std::pair<uint32_t, uint32_t> in_place(0, 6);  // logits, targets, gradients of loss and sum; loss and sum
  for (const LoopProgram& program : whole.programs)
    EXPECT_NE(std::ranges::find(program.in_place, in_place), program.in_place.end()) << to_text(program);
  EXPECT_EQ(choice(2500, 5, false, DType::kF32).scratch_bytes, logits) << "it is summed where it belongs";
  EXPECT_EQ(choice(2500, 5, true, DType::kBF16).scratch_bytes, logits);
  EXPECT_EQ(choice(2500, 3, false, DType::kBF16).scratch_bytes, logits) << "nothing has a gradient";
  const KernelChoice even = choice(2048, 4, false, DType::kBF16);
  EXPECT_EQ(even.loss, (ChunkedLoss{1024, 0, kNoProgram}));
  EXPECT_EQ(even.programs.size(), 1U);
  const KernelChoice one = choice(1000, 4, false, DType::kBF16);
  EXPECT_EQ(one.loss, (ChunkedLoss{1000, 0, kNoProgram}));
  EXPECT_EQ(one.scratch_bytes, aligned(1000 * 50 * 2)) << "one product is the weight's gradient";
  EXPECT_EQ(one.workspace_bytes, uint64_t{32} << 20);
  EXPECT_EQ(choice(0, 4, false, DType::kBF16).kind, KernelChoice::Kind::kAten);
}

TEST(KernelChoice, AGpusLossReadsWhatHasGapsAsACopy) {
  const std::vector<TensorLayout> inputs = {lying(DType::kF32, {40, 16}, {1, 40}),
                                            lying(DType::kF32, {50, 16}, {2, 100}), lying(DType::kI64, {40}, {2}),
                                            lying(DType::kF32, {40}, {0})};
  const KernelChoice choice = choose_kernel(loss(true), inputs, {.sm = 90}, 1);
  EXPECT_EQ(choice.copied, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(choice.scratch_bytes, 40U * 50 * 4 + aligned(50 * 16 * 4) + aligned(40 * 8) + aligned(40 * 4));
}

TEST(KernelChoice, OtherNodesAreATens) {
  EXPECT_EQ(text_of(node_of("sin", {}), {dense(DType::kF32, {4})}, kAmd), "aten | no kernel of its own");
  Node call;
  call.op = "aten::mm";
  call.aten.emplace();
  EXPECT_EQ(text_of(call, {dense(DType::kF32, {4, 4}), dense(DType::kF32, {4, 4})}, kAmd), "aten | an ATen call");
}

// ---- groups

Graph group(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}
std::string text_of(const Graph& graph, const Features& features = kAmd) {
  return text_of(choose_kernel(graph, features, kThreads));
}

TEST(KernelChoice, AGroupIsOneGeneratedKernelWhereItCanBe) {
  const Graph sums = group(R"(input %0: bf16[6, 40] = captured "0"
input %1: f32[40] = captured "1"
%2: f32[6, 40] = cast(%0) {dtype=f32} | forward ""
%3: f32[6] = sum(%2) {dims=[1], keepdim=false} | forward ""
%4: f32[6, 1] = reshape(%3) {shape=[6, 1]} | forward ""
%5: f32[6, 40] = sub(%2, %4) | forward ""
%6: f32[6, 40] = mul(%5, %1) | forward ""
%7: f32[40] = sum(%6) {dims=[0], keepdim=false} | forward ""
return %6
return %7
)");
  const KernelChoice choice = choose_kernel(sums, kNone, kThreads);
  EXPECT_EQ(text_of(choice), "generated, 1 programs | one kernel is generated");
  EXPECT_GT(choice.scratch_bytes, 0U);
  EXPECT_EQ(choice.scratch_bytes, static_cast<uint64_t>(choice.programs[0].scratch_bytes));

  EXPECT_EQ(text_of(group(R"(input %0: f32[40] = captured "0"
input %1: f32[40] = captured "1"
%2: f32[40] = add(%0, %1) | forward ""
return %2
)")),
            "generated, 1 programs, 0 may be 0, 0 may be 1 | one kernel is generated");
  EXPECT_EQ(text_of(group(R"(input %0: c64[40] = captured "0"
%1: c64[40] = neg(%0) | forward ""
return %1
)")),
            "none | a group of 1 nodes is not one kernel: c64 has no loops");
  EXPECT_EQ(text_of(group(R"(input %0: f32[40] = captured "0"
%1: f32[40] = neg(%0) | forward ""
)")),
            "none | nothing needs it");
}

// A matmul of (200, 96), and what is made of it.
Graph matmul_and(std::string_view epilogue) {
  return group(str(R"(input %0: bf16[200, 32] = captured "0"
input %1: bf16[96, 32] = captured "1"
input %2: bf16[96] = captured "2"
input %3: bf16[200, 96] = captured "3"
%4: bf16[200, 96] = matmul(%0, %1) {{transpose_a=false, transpose_b=true}} | forward ""
{})",
                   epilogue));
}
const std::string_view kEpilogue = R"(%5: bf16[200, 96] = add(%4, %2) | forward ""
%6: bf16[200, 96] = mul(%5, %3) | forward ""
%7: f32[200, 96] = cast(%6) {dtype=f32} | forward ""
%8: f32[] = sum(%7) {dims=[0, 1], keepdim=false} | forward ""
return %6
return %8
)";

TEST(KernelChoice, AGroupOfMatmulsIsFinishedTileByTile) {
  const Graph whole = matmul_and(kEpilogue);
  const KernelChoice choice = choose_kernel(whole, kAmd, kThreads);
  EXPECT_EQ(
      text_of(choice),
      "matmul 0 by 1', epilogues 0 1 2 3, in 2(0, 1), in 3(96, 1), out 0(96, 1), share 1, 4 programs, 0 may be 3 | "
      "bf16 on the blocked kernel");
  const int64_t sizes[4][2] = {{128, 64}, {72, 64}, {128, 32}, {72, 32}};
  uint64_t worker_bytes = 0;
  for (size_t kind = 0; kind < kTileKinds; ++kind) {
    EXPECT_EQ(choice.programs[kind], lower(epilogue_of(whole, sizes[kind][0], sizes[kind][1], 64))) << kind;
    worker_bytes = std::max(worker_bytes, aligned(static_cast<uint64_t>(choice.programs[kind].scratch_bytes)));
  }

  const std::vector<TensorLayout> inputs = {dense(DType::kBF16, {200, 32}), dense(DType::kBF16, {96, 32}),
                                            dense(DType::kBF16, {96}), dense(DType::kBF16, {200, 96})};
  BoundMatmul bound = *bind_matmul(*choice.matmul, inputs, kAmd);
  const MatmulScratch scratch = scratch_of(*choice.matmul, bound, choice.programs, kThreads);
  EXPECT_EQ(choice.scratch_bytes, scratch.bytes());
  bound.call.finish = [](std::span<const blocked::TileRef>, int, void*) {};
  EXPECT_EQ(scratch.matmul_bytes, aligned(blocked::workspace_bytes(bound.call, kThreads)));
  EXPECT_GT(worker_bytes, 0U);
  EXPECT_EQ(scratch.worker_bytes, worker_bytes);
  EXPECT_EQ(scratch.share_bytes, aligned(2 * 2 * sizeof(float)));
}

TEST(KernelChoice, TilesOfOneSizeHaveOneEpilogue) {
  Graph small = group(R"(input %0: f32[64, 32] = captured "0"
input %1: f32[32, 128] = captured "1"
input %2: f32[32, 128] = captured "2"
%3: f32[64, 128] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%4: f32[64, 128] = matmul(%0, %2) {transpose_a=false, transpose_b=false} | forward ""
%5: f32[64, 128] = mul(%3, %4) | forward ""
return %5
)");
  EXPECT_EQ(text_of(small),
            "matmul 0 by 1 2, epilogues 0 - - -, out 0(128, 1), 1 programs | f32 on the blocked kernel");
  EXPECT_EQ(text_of(small, kIntel), "none | f32: the library's matmul is faster on this CPU");
  small.inputs[2].strides = {1, 32};
  EXPECT_EQ(text_of(small),
            "matmul 0 by 1 2, epilogues 0 - - -, out 0(128, 1), 1 programs | f32 on the blocked kernel");
  small.inputs[2].strides = {256, 2};
  EXPECT_EQ(text_of(small), "none | the blocked kernel does not take operands that lie so");
}

TEST(KernelChoice, WhatIsReadInOtherStridesIsNotWrittenInPlace) {
  Graph apart = matmul_and(kEpilogue);
  apart.inputs[3].strides = {100, 1};
  EXPECT_EQ(text_of(apart),
            "matmul 0 by 1', epilogues 0 1 2 3, in 2(0, 1), in 3(100, 1), out 0(96, 1), share 1, 4 programs | "
            "bf16 on the blocked kernel");
}

TEST(KernelChoice, AnOperandIsNotWrittenInPlace) {
  EXPECT_EQ(text_of(group(R"(input %0: f32[64, 64] = captured "0"
input %1: f32[64, 64] = captured "1"
%2: f32[64, 64] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%3: f32[64, 64] = mul(%2, %0) | forward ""
%4: f32[64, 64] = mul(%3, %1) | forward ""
return %4
)")),
            "matmul 0 by 1, epilogues 0 - - -, in 0(64, 1), in 1(64, 1), out 0(64, 1), 1 programs | "
            "f32 on the blocked kernel");
}

TEST(KernelChoice, MatmulsWithoutAnEpilogueShareACall) {
  EXPECT_EQ(text_of(group(R"(input %0: bf16[96, 32] = captured "0"
input %1: bf16[200, 32] = captured "1"
input %2: bf16[32, 40] = captured "2"
%3: bf16[200, 96] = matmul(%1, %0) {transpose_a=false, transpose_b=true} | forward ""
%4: bf16[200, 40] = matmul(%1, %2) {transpose_a=false, transpose_b=false} | forward ""
return %3
return %4
)")),
            "matmul 1 by 0' 2 | bf16 on the blocked kernel");
  EXPECT_EQ(text_of(matmul_and("return %4\n"), kNone), "none | bf16: this machine has no blocked matmul for it");
}

TEST(KernelChoice, SaysWhyMatmulsAreNotFinished) {
  EXPECT_EQ(text_of(matmul_and(R"(%5: bf16[200, 1] = sum(%4) {dims=[1], keepdim=true} | forward ""
return %5
)")),
            "none | a sum of less than all, or not in f32");
  EXPECT_EQ(text_of(group(R"(input %0: bf16[8, 8] = captured "0"
input %1: bf16[8, 8] = captured "1"
%2: bf16[8, 8] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%3: bf16[8, 8] = matmul(%1, %0) {transpose_a=false, transpose_b=false} | forward ""
return %2
return %3
)")),
            "none | matmuls of several left operands");
  std::string inputs, sums;  // 63 tensors are added to one matmul: 65 buffers
  for (int i = 0; i < 63; ++i) {
    inputs += str("input %{}: bf16[8, 8] = captured \"{}\"\n", i, i);
    if (i > 0) sums += str("%{}: bf16[8, 8] = add(%{}, %{}) | forward \"\"\n", 63 + i, 62 + i, i);
  }
  EXPECT_EQ(
      text_of(group(str(R"({}%63: bf16[8, 8] = matmul(%0, %0) {{transpose_a=false, transpose_b=false}} | forward ""
{}%126: bf16[8, 8] = add(%125, %0) | forward ""
return %126
)",
                        inputs, sums))),
      "none | 64 tensors are too many to finish matmuls with");
}

}  // namespace
}  // namespace stepc
