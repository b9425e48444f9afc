// What generated kernels reach beside the memory traffic that they stand for, one thread: each kernel's turns alternate
// with those of a stream, a loop of additions that reads and writes as many arrays and bytes, in place where the kernel
// is. Prints a line each: the median share of the stream over the pairs of turns, and both medians.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/check.h"
#include "benchmarks/stopwatch.h"
#include "codegen/codegen.h"
#include "ops/graph_builder.h"
#include "passes/rewrite/decompose.h"

namespace {

using namespace stepc;

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 2048;
const Shape kShape = {kRows, kColumns};

// ---- the kernels

struct Row {
  std::string name;
  Graph graph;
  std::vector<std::pair<uint32_t, uint32_t>> in_place;  // (input, output)
};

TensorId input(GraphBuilder& b, DType dtype, Shape shape) {
  const std::string key = str("{}", b.graph().inputs.size());
  return b.graph().add_input({InputKind::kCaptured, key, {}, {}, 0}, {dtype, std::move(shape)});
}
void give(GraphBuilder& b, TensorId id) {
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = id;
}
TensorId mean_of_row(GraphBuilder& b, TensorId x) {
  return b.add("mean", {x}, {{"dims", Shape{1}}, {"keepdim", true}});
}

void residual_add(GraphBuilder& b, DType dtype) {
  give(b, b.add("add", {input(b, dtype, kShape), input(b, dtype, kShape)}));
}
void cast_down(GraphBuilder& b, DType dtype) { give(b, b.cast(input(b, DType::kF32, kShape), dtype)); }
void swiglu(GraphBuilder& b, DType dtype) {
  const TensorId gate = input(b, dtype, kShape);
  give(b, b.add("mul", {b.add("silu", {gate}), input(b, dtype, kShape)}));
}
void swiglu_backward(GraphBuilder& b, DType dtype) {
  const TensorId gradient = input(b, dtype, kShape);
  const TensorId gate = input(b, dtype, kShape);
  const TensorId up = input(b, dtype, kShape);
  give(b, b.add("silu_backward", {b.add("mul", {gradient, up}), gate}));
  give(b, b.add("mul", {gradient, b.add("silu", {gate})}));
}
void gelu(GraphBuilder& b, DType dtype) { give(b, b.add("gelu", {input(b, dtype, kShape)})); }
void softmax(GraphBuilder& b, DType dtype) {
  give(b, b.add("softmax", {input(b, dtype, kShape)}, {{"dim", int64_t{1}}}));
}

// As Llama writes it: the row is scaled in f32, rounded, then times the weight.
void rms_norm(GraphBuilder& b, DType dtype) {
  const TensorId x = b.cast(input(b, dtype, kShape), DType::kF32);
  const TensorId weight = input(b, dtype, {kColumns});
  const TensorId mean = mean_of_row(b, b.add("square", {x}));
  const TensorId rstd = b.add("rsqrt", {b.add("add", {mean, b.full(1e-5, DType::kF32)})});
  give(b, b.add("mul", {b.cast(b.add("mul", {x, rstd}), dtype), weight}));
  give(b, rstd);
}
void rms_norm_backward(GraphBuilder& b, DType dtype) {
  const TensorId gradient = input(b, dtype, kShape);
  const TensorId x = b.cast(input(b, dtype, kShape), DType::kF32);
  const TensorId weight = input(b, dtype, {kColumns});
  const TensorId rstd = input(b, DType::kF32, {kRows, 1});
  const TensorId normal = b.cast(b.add("mul", {x, rstd}), dtype);
  const TensorId of_weight = b.add("mul", {gradient, normal});
  give(b, b.cast(b.sum(b.cast(of_weight, DType::kF32), {0}), dtype));
  const TensorId scaled = b.cast(b.add("mul", {gradient, weight}), DType::kF32);
  const TensorId along = mean_of_row(b, b.add("mul", {scaled, x}));
  const TensorId cube = b.add("mul", {b.add("mul", {rstd, rstd}), rstd});
  const TensorId back = b.add("mul", {x, b.add("mul", {along, cube})});
  give(b, b.cast(b.add("sub", {b.add("mul", {scaled, rstd}), back}), dtype));
}
void layer_norm(GraphBuilder& b, DType dtype) {
  const TensorId x = input(b, dtype, kShape);
  const TensorId weight = input(b, dtype, {kColumns});
  const Attrs attrs = {{"dims", int64_t{1}}, {"eps", 1e-5}};
  for (TensorId id : b.add_all("layer_norm", {x, weight, input(b, dtype, {kColumns})}, attrs)) give(b, id);
}
void layer_norm_backward(GraphBuilder& b, DType dtype) {
  const TensorId gradient = input(b, dtype, kShape);
  const TensorId x = input(b, dtype, kShape);
  const TensorId mean = input(b, DType::kF32, {kRows, 1});
  const TensorId rstd = input(b, DType::kF32, {kRows, 1});
  const TensorId weight = input(b, dtype, {kColumns});
  const Attrs attrs = {{"dims", int64_t{1}}};
  for (TensorId id : b.add_all("layer_norm_backward", {gradient, x, mean, rstd, weight}, attrs)) give(b, id);
}
void bias_gradient(GraphBuilder& b, DType dtype) {
  give(b, b.cast(b.sum(b.cast(input(b, dtype, kShape), DType::kF32), {0}), dtype));
}
void squared_norm(GraphBuilder& b, DType dtype) {
  give(b, b.sum(b.add("square", {b.cast(input(b, dtype, kShape), DType::kF32)}), {0, 1}));
}
// Rows of a table; the row's squares are summed in the same sweep.
void embedding(GraphBuilder& b, DType dtype) {
  const TensorId table = input(b, dtype, {kRows, kColumns});
  const TensorId ids = input(b, DType::kI64, {kRows});
  give(b, b.add("take", {table, ids}, {{"dim", int64_t{0}}}));
}
// (batch, seq, head, dim) to (batch, head, seq, dim), the halves of dim rotated.
void rotary(GraphBuilder& b, DType dtype) {
  constexpr int64_t kSeq = kRows / 8;
  constexpr int64_t kHeads = kColumns / 64;
  const TensorId x = b.transpose(input(b, dtype, {8, kSeq, kHeads, 64}), {0, 2, 1, 3});
  const TensorId cosine = input(b, dtype, {1, 1, kSeq, 64});
  const TensorId sine = input(b, dtype, {1, 1, kSeq, 64});
  const TensorId low = b.slice(x, {0, 0, 0, 0}, {8, kHeads, kSeq, 32}, {1, 1, 1, 1});
  const TensorId high = b.slice(x, {0, 0, 0, 32}, {8, kHeads, kSeq, 32}, {1, 1, 1, 1});
  const TensorId rotated = b.add("concat", {b.add("neg", {high}), low}, {{"dim", int64_t{3}}});
  give(b, b.add("add", {b.add("mul", {x, cosine}), b.add("mul", {rotated, sine})}));
}
// All four arrays of one type.
void adamw(GraphBuilder& b, DType dtype) {
  std::vector<TensorId> in;
  for (int k = 0; k < 4; ++k) in.push_back(input(b, dtype, kShape));
  for (int k = 0; k < 6; ++k) in.push_back(input(b, DType::kF64, {}));
  for (TensorId id : b.add_all("adamw_update", in)) give(b, id);
}
// A narrow gradient moves parameters in f32, of which a narrow copy is made.
void adamw_master(GraphBuilder& b, DType dtype) {
  std::vector<TensorId> in = {input(b, DType::kF32, kShape), TensorId(), input(b, DType::kF32, kShape),
                              input(b, DType::kF32, kShape)};
  in[1] = b.cast(input(b, dtype, kShape), DType::kF32);
  for (int k = 0; k < 6; ++k) in.push_back(input(b, DType::kF64, {}));
  const std::vector<TensorId> out = b.add_all("adamw_update", in);
  for (TensorId id : out) give(b, id);
  give(b, b.cast(out[0], dtype));
}

std::vector<Row> rows() {
  std::vector<Row> out;
  const auto add = [&](const char* name, DType dtype, void (*build)(GraphBuilder&, DType),
                       std::vector<std::pair<uint32_t, uint32_t>> in_place = {}) {
    GraphBuilder b;
    build(b, dtype);
    out.push_back({str("{} {}", name, name_of(dtype)), decompose(b.take()), std::move(in_place)});
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    add("residual add", dtype, residual_add, {{0, 0}});
    if (dtype != DType::kF32) add("cast from f32 to", dtype, cast_down);
    add("SwiGLU", dtype, swiglu);
    add("SwiGLU backward", dtype, swiglu_backward);
    add("GELU", dtype, gelu);
    add("rotary", dtype, rotary);
    add("embedding", dtype, embedding);
    add("softmax", dtype, softmax);
    add("RMS norm", dtype, rms_norm);
    add("RMS norm backward", dtype, rms_norm_backward);
    add("layer norm", dtype, layer_norm);
    add("layer norm backward", dtype, layer_norm_backward);
    add("bias gradient", dtype, bias_gradient);
    add("squared norm", dtype, squared_norm);
    add("AdamW", dtype, adamw, {{0, 0}, {2, 1}, {3, 2}});
    if (dtype != DType::kF32) add("AdamW, f32 master,", dtype, adamw_master, {{0, 0}, {1, 1}, {2, 2}});
  }
  return out;
}

// ---- memory and streams

struct Memory {
  explicit Memory(int64_t size) : size(size), bytes(static_cast<size_t>(size) + 64, 0) {
    void* at = this->bytes.data();
    size_t space = this->bytes.size();
    start = std::align(64, static_cast<size_t>(size), at, space);
  }
  int64_t size;
  std::vector<uint8_t> bytes;
  void* start;
};

// Numbers of ordinary size, and row numbers below kRows.
void fill(Memory& memory, DType dtype, bool is_positive) {
  uint32_t state = 12345;
  const auto next = [&] { return state = state * 1664525 + 1013904223; };
  const auto fill_as = [&](auto* to, auto&& made) {
    for (size_t i = 0; i < static_cast<size_t>(memory.size) / sizeof(*to); ++i) to[i] = made();
  };
  // From 0.5 to 2 by the bits.
  const auto sign = [&](uint32_t bit) { return is_positive ? 0 : next() & bit; };
  switch (dtype) {
    case DType::kF32:
      return fill_as(static_cast<uint32_t*>(memory.start),
                     [&] { return 0x3F000000 + (next() >> 8) % 0x1000000 + sign(0x80000000); });
    case DType::kBF16:
      return fill_as(static_cast<uint16_t*>(memory.start),
                     [&] { return static_cast<uint16_t>(0x3F00 + (next() >> 24) + (sign(0x80000000) >> 16)); });
    case DType::kF16:
      return fill_as(static_cast<uint16_t*>(memory.start),
                     [&] { return static_cast<uint16_t>(0x3800 + (next() >> 21) + (sign(0x80000000) >> 16)); });
    case DType::kF64:
      return fill_as(static_cast<double*>(memory.start), [] { return 0.5; });
    default:
      return fill_as(static_cast<int64_t*>(memory.start), [&] { return static_cast<int64_t>(next() >> 16) % kRows; });
  }
}

template <size_t kReads, size_t kWrites>
[[gnu::always_inline]] inline void add_all(const std::vector<float*>& arrays, int64_t count) {
  float* at[kReads + kWrites];
  std::ranges::copy(arrays, at);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    float sum = at[0][i];
#pragma GCC unroll 4
    for (size_t k = 1; k < kReads; ++k) sum += at[k][i];
#pragma GCC unroll 4
    for (size_t k = 0; k < kWrites; ++k) at[kReads + k][i] = sum;
  }
}
float total;  // kept, so that a stream without writes is not left out
[[gnu::target_clones("avx512f", "avx2", "default")]] void stream(size_t reads, size_t writes,
                                                                 const std::vector<float*>& arrays, int64_t count) {
  if (writes == 0) {
    float lanes[64] = {};
    for (int64_t i = 0; i + 64 <= count; i += 64)
#pragma GCC unroll 64
      for (int64_t k = 0; k < 64; ++k) lanes[k] += arrays[0][i + k];
    for (float lane : lanes) total = total + lane;
  } else if (reads == 1 && writes == 1) {
    add_all<1, 1>(arrays, count);
  } else if (reads == 2 && writes == 1) {
    add_all<2, 1>(arrays, count);
  } else if (reads == 3 && writes == 2) {
    add_all<3, 2>(arrays, count);
  } else if (reads == 4 && writes == 3) {
    add_all<4, 3>(arrays, count);
  } else if (reads == 4 && writes == 4) {
    add_all<4, 4>(arrays, count);
  } else {
    INTERNAL_CHECK(false, "no stream of {} reads and {} writes", reads, writes);
  }
}

// ---- one line

void measure(KernelCompiler& compiler, const Row& row) {
  const auto kernel = compiler.compile(lower(row.graph));
  std::vector<Memory> memory;
  std::vector<void*> buffers;
  std::vector<float*> streamed;  // arrays that count: the large ones
  int64_t bytes = 0;
  const auto is_large = [](int64_t size) { return size >= kRows * kColumns; };
  const size_t inputs = row.graph.inputs.size();
  memory.reserve(inputs + row.graph.outputs.size());
  size_t reads = 0;
  for (size_t i = 0; i < inputs; ++i) {
    const TensorType& type = row.graph.type(row.graph.inputs[i].tensor);
    memory.emplace_back(bytes_of(type));
    fill(memory.back(), type.dtype, i == 3);  // mean squares are not negative
    buffers.push_back(memory.back().start);
    if (!is_large(memory.back().size)) continue;
    streamed.push_back(static_cast<float*>(memory.back().start));
    bytes += memory.back().size;
    ++reads;
  }
  size_t writes = 0;
  for (uint32_t k = 0; k < row.graph.outputs.size(); ++k) {
    const auto home = std::ranges::find(row.in_place, k, &std::pair<uint32_t, uint32_t>::second);
    const int64_t size = bytes_of(row.graph.type(row.graph.outputs[k].tensor));
    if (home == row.in_place.end()) {
      memory.emplace_back(size);
      buffers.push_back(memory.back().start);
    } else {
      INTERNAL_CHECK(std::ranges::find(kernel->in_place, *home) != kernel->in_place.end(), "{}", row.name);
      buffers.push_back(buffers[home->first]);
    }
    if (!is_large(size)) continue;
    streamed.push_back(static_cast<float*>(buffers.back()));
    bytes += size;
    ++writes;
  }
  // Streams have memory of their own: sums of sums would leave the numbers' range.
  const auto each = bytes / static_cast<int64_t>(reads + writes);
  std::vector<Memory> copies;
  copies.reserve(streamed.size());
  std::vector<float*> arrays;
  for (size_t k = 0; k < streamed.size(); ++k) {
    const auto first = std::ranges::find(streamed, streamed[k]) - streamed.begin();
    if (static_cast<size_t>(first) < k) {
      arrays.push_back(arrays[static_cast<size_t>(first)]);
      continue;
    }
    copies.emplace_back(each);
    arrays.push_back(static_cast<float*>(copies.back().start));
  }
  Memory scratch(kernel->scratch_bytes);
  const auto run = [&] {
    for (const KernelPhase& phase : kernel->phases) phase.run(buffers.data(), 0, phase.items, scratch.start);
  };
  std::vector<double> kernels, streams, shares;
  constexpr int kTurns = 15;
  for (int turn = -1; turn < kTurns; ++turn) {
    const double one = seconds_of(run);
    const double other = seconds_of([&] { stream(reads, writes, arrays, each / 4); });
    if (turn < 0) continue;
    kernels.push_back(one);
    streams.push_back(other);
    shares.push_back(other / one);
  }
  const auto rate = [&](std::vector<double> seconds) {
    return static_cast<double>(bytes) / median(std::move(seconds)) * 1e-9;
  };
  std::printf("%-26s %4.0f %% of a stream of %zu + %zu: %6.2f of %6.2f GB/s\n", row.name.c_str(), 100 * median(shares),
              reads, writes, rate(kernels), rate(streams));
}

}  // namespace

int main(int count, char** words) {
  try {
    KernelCompiler compiler(host_cpu());
    for (const Row& row : rows())
      if (count < 2 || row.name.find(words[1]) != std::string::npos) measure(compiler, row);
    const CompilerStatistics statistics = compiler.statistics();
    std::printf("%zu kernels compiled in %.1f ms each\n", statistics.compiled,
                1e3 * statistics.compile_seconds / static_cast<double>(statistics.compiled));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codegen_benchmark: %s\n", error.what());
    return 1;
  }
  return 0;
}
