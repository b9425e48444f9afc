// Target: the machine as data. Planning asks it instead of a clock, so a plan is a function of its inputs, and a plan
// for another machine is possible.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/features.h"
#include "cost/rates.h"
#include "ir/graph.h"

namespace stepc {

// Facts about a GPU beside its rates; a CPU has none of them.
struct Gpu {
  std::string name;             // "NVIDIA H100 80GB"
  int64_t multiprocessors = 0;  // they share a kernel
  int64_t shared_bytes = 0;     // of each multiprocessor
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Gpu&) const = default;
};

// For a GPU, `features` has its compute capability. These rates of a GPU count: flops_per_second (f32 arithmetic
// between matmuls), bytes_per_second (of a copy, read and written), and in `rates` instruction_seconds (start and end
// of a kernel), the library's matmuls and attentions, and the link.
struct Target {
  double flops_per_second = 1e12;
  double bytes_per_second = 4e10;
  double narrow_flops_per_second = 1e12;  // on bf16 and f16 operands
  Features features = {};
  int threads = 1;       // they share a kernel
  std::string cpu = {};  // that was measured, by LLVM's name: "znver4"; empty: unknown
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
// For a CPU `threads` and `features` are required; rates have defaults. Throws UserError that names line and key for
// any other text.
Target parse_target(std::string_view toml);

// Amounts of work: arithmetic, and traffic between kernels and memory.
struct Work {
  double flops = 0;
  double narrow_flops = 0;  // on bf16 and f16 operands
  double bytes = 0;
  [[nodiscard]] double all_flops() const { return flops + narrow_flops; }
  bool operator==(const Work&) const = default;
};
Work& operator+=(Work& sum, const Work& more);

// The work of one node. An opaque call has only its traffic, except for what a rule states of the program's own
// operator; a view has none.
Work work_of(const Graph& graph, const Node& node);
// The work of nodes that run as one kernel: the arithmetic of all, and the traffic of what they read from outside, each
// tensor once, and of their results. An element that a view repeats is read once.
Work work_of(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<TensorId>& inputs,
             const std::vector<TensorId>& outputs);

// Roofline: work takes as long as its arithmetic or its memory traffic, whichever takes longer.
double seconds_of(const Work& work, const Target& target);
double seconds_of(const Graph& graph, const Node& node, const Target& target);

}  // namespace stepc
