// The use of a planned step's bytes, as data, as a table and as a picture: the live bytes at the peak, by owner, and
// over time, by class. Pure functions of a plan; nothing needs to have run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "memory/graph_memory.h"
#include "memory/order/order_problem.h"

namespace stepc {

// Inputs are in the program's memory for the whole step, the other classes in the arena. Activations are made by the
// forward pass; temporaries by the backward pass and the update, without the parameters' gradients.
enum class ByteClass : uint8_t {
  kParameters,
  kOptimizerState,
  kBuffers,
  kBatch,
  kOtherInputs,
  kGradients,
  kActivations,
  kTemporaries,
  kWorkspaces,
};
inline constexpr size_t kByteClasses = 9;
std::string_view name_of(ByteClass byte_class);

struct ModuleBytes {
  std::string module;  // "layers.0.mlp"
  uint64_t bytes = 0;
};

// Tensors that one op makes in one phase, or workspaces of what runs at the peak.
struct OpBytes {
  std::string what;    // "forward matmul", "workspace of backward put_add"
  std::string module;  // of the largest one
  size_t count = 0;
  uint64_t bytes = 0;
};

struct MemoryReport {
  std::array<uint64_t, kByteClasses> at_peak = {};  // by class
  uint64_t peak_bytes = 0;                          // their sum: the program's memory and the live bytes
  uint64_t arena_bytes = 0;                         // the arena for the live bytes
  size_t peak_step = 0;                             // the position in the order
  std::string peak_op;                              // "matmul"
  std::string peak_node;                            // the node at the peak: "backward matmul in 'layers.0.mlp'"
  std::vector<ModuleBytes> activations;             // live at the peak, largest first
  std::vector<OpBytes> allocated;                   // in the arena at the peak, largest first
  std::vector<std::array<uint64_t, kByteClasses>> timeline;  // by position in the order: live while the unit runs
};

// `order`: of the units. `arena_bytes`: of its layout.
MemoryReport memory_report(const Graph& graph, const GraphMemory& memory, const UnitOrder& order, uint64_t arena_bytes);

// One line for each class, then the activations of the largest modules, at most `modules`.
std::string to_text(const MemoryReport& report, size_t modules = 10);
// The ops that allocate most of the arena at the peak, in one line, at most `ops`:
// "workspace of backward put_add 294.5 MiB in 'embeddings', 24 of forward matmul 96.0 MiB, the largest in 'layers.0'".
std::string allocated_text(const MemoryReport& report, size_t ops = 3);

// Live bytes by instruction, stacked by class: an SVG file's text.
std::string timeline_svg(const MemoryReport& report, std::string_view title);

}  // namespace stepc
