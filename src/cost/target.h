// Target: the machine as data. Whoever plans asks it instead of a clock, so a plan is a function of its inputs, and a
// machine that is elsewhere can be planned for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/features.h"
#include "cost/rates.h"
#include "ir/graph.h"

namespace stepc {

// What is said of a GPU beside its rates; none of these is a CPU's.
struct Gpu {
  std::string name;             // "NVIDIA H100 80GB"
  int64_t multiprocessors = 0;  // that share a kernel
  int64_t shared_bytes = 0;     // of each
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Gpu&) const = default;
};

// Of a GPU `features` has its compute capability, and of its rates count: flops_per_second (arithmetic in f32 between
// matmuls), bytes_per_second (of a copy, read and written), and in `rates` instruction_seconds (a kernel's start and
// end), the library's matmuls and attentions, the link.
struct Target {
  double flops_per_second = 1e12;
  double bytes_per_second = 4e10;
  double narrow_flops_per_second = 1e12;  // on bf16 and f16 operands
  Features features = {};
  int threads = 1;       // that share a kernel
  std::string cpu = {};  // that was measured, as LLVM calls it: "znver4"; empty: not said
  Rates rates = {};      // by kind of work; the three above are the best of them
  std::optional<Gpu> gpu = {};
  bool operator==(const Target&) const = default;
};

// As TOML that parse_target() reads back to the same value:
//     threads = 2
//     cpu = "znver4"                    may be left out
//     features = ["bf16", "f32", "avx512"]
//     flops_per_second = 150000000000
//     narrow_flops_per_second = 600000000000
//     bytes_per_second = 20000000000
//     [rates]                           by kind of work, as cost/rates.h names them
//     link_latency_seconds = 5e-05      between ranks
//     link_bytes_per_second = 1000000000
// and of a GPU, each key of which must be there:
//     device = "cuda"
//     name = "NVIDIA H100 80GB"
//     sm = 90
//     multiprocessors = 132
//     shared_bytes = 233472             of each multiprocessor
//     l2_bytes = 52428800
//     memory_bytes = 85520809984
//     bytes_per_second = 3e12
//     flops_per_second = 67e12
//     kernel_seconds = 1e-6
//     link_latency_seconds = 5e-06
//     link_bytes_per_second = 450e9
//     [[matmuls]]                       (rows, inner) x (inner, columns); bf16 and f32
//     [[attentions]]                    forward and backward of both
std::string to_text(const Target& target);
// Of a CPU `threads` and `features` must be there, rates have defaults. Anything else is a UserError that names line
// and key.
Target parse_target(std::string_view toml);

// What there is to do: arithmetic, and traffic between kernels and memory.
struct Work {
  double flops = 0;
  double narrow_flops = 0;  // on bf16 and f16 operands
  double bytes = 0;
  [[nodiscard]] double all_flops() const { return flops + narrow_flops; }
  bool operator==(const Work&) const = default;
};
Work& operator+=(Work& sum, const Work& more);

// A node alone. An opaque call is its traffic alone, but for what the program says of an operator of its
// own; a view is nothing.
Work work_of(const Graph& graph, const Node& node);
// Nodes that run as one kernel: the arithmetic of all, and the traffic of what they read from outside, each tensor
// once, and leave behind. What a view repeats is read once.
Work work_of(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<TensorId>& inputs,
             const std::vector<TensorId>& outputs);

// Roofline: work takes as long as its arithmetic or its memory traffic, whichever takes longer.
double seconds_of(const Work& work, const Target& target);
double seconds_of(const Graph& graph, const Node& node, const Target& target);

}  // namespace stepc
