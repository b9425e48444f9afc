// OpDef: everything that the compiler knows about an op, as one table row: types, traits, shape rule, sharding rule,
// cost, decomposition and scalar body. Rows live in the family files; whoever asks `op == "x"` elsewhere misses a
// trait or a column: tools/check_ops finds it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ops/combine.h"
#include "ops/rules/sharding_rule.h"
#include "ops/scalar_expr.h"

namespace stepc {

// One use of an op, by types.
struct OpCall {
  std::vector<TensorType> inputs;
  Attrs attrs;
  [[nodiscard]] const TensorType& in(size_t i) const { return inputs[i]; }
};

enum class Trait : uint32_t {
  kElementwise = 1 << 0,   // each result element is scalar body(operands' elements there), operands broadcast
  kCommutative = 1 << 1,   // two operands in any order
  kView = 1 << 2,          // moves elements, computes nothing; a kernel may read through it
  kReduction = 1 << 3,     // drops dimensions `dims`
  kConstant = 1 << 4,      // no operands: made from attributes
  kRandom = 1 << 5,        // a function of the rng input and its `stream`: repeated freely, never with another stream
  kShapeAttr = 1 << 6,     // attribute `shape` is the result's shape: a shard's call has the shard's shape there
  kComposite = 1 << 7,     // always has a decomposition into core ops
  kOverwrites = 1 << 8,    // the first operand with some elements replaced: may be written in its memory
  kSplat = 1 << 9,         // one value everywhere: its attribute `value`
  kSameBytes = 1 << 10,    // a view of all its operand's bytes in their order, under another shape or dtype
  kBroadcast = 1 << 11,    // a view that repeats its operand along dimensions, as elementwise ops do by themselves
  kContraction = 1 << 12,  // sums of products of two operands' rows and columns, `transpose_a` and `transpose_b` saying
                           // which is which
  kSelects = 1 << 13,      // each result element is one of its operand's, chosen by index: a kernel may read it there
  kRecomputes = 1 << 14,   // worth running again to save its results' memory, though dearer than a pass over them
  kLinear = 1 << 15,       // of sums of all operands it makes the sum of its results: parts that add up pass through
  kScales = 1 << 16,       // so it is of its first operand alone, and where it is commutative of either
};
constexpr uint32_t operator|(Trait a, Trait b) { return static_cast<uint32_t>(a) | static_cast<uint32_t>(b); }
constexpr uint32_t operator|(uint32_t a, Trait b) { return a | static_cast<uint32_t>(b); }

enum class AttrKind : uint8_t { kBool, kInt, kReal, kNumber, kDType, kInts, kReals, kWord };  // kNumber: by the dtype

struct AttrDef {
  std::string_view name;
  AttrKind kind;
  std::optional<AttrValue> otherwise;  // what a builder fills in; none: must be given
};

class GraphBuilder;
// Builds the op from core ops; gives its outputs.
using DecomposeFn = std::vector<TensorId> (*)(GraphBuilder& b, const std::vector<TensorId>& inputs, const Attrs& attrs);
using InferFn = std::vector<TensorType> (*)(const OpCall& call);
using ShardingFn = ShardingRule (*)(const OpCall& call, const std::vector<TensorType>& results);
// Attributes of a shard's call, of those of the whole one: what counts elements there counts a shard's.
using LocalAttrsFn = Attrs (*)(const OpCall& whole, const std::vector<Shape>& operands,
                               const std::vector<Shape>& results);
using CountFn = double (*)(const OpCall& call, const std::vector<TensorType>& results);

// Which operand holds indices, and into which operand's dimension `dim` (none: the first). A kernel reads the nearest
// element for one that is out of range, so those that the program gives are checked before anything is written.
struct IndexUse {
  size_t indices = 0, indexed = 0;
  bool slices = false;   // an index chooses all that lies at it along the dimension, else one element
  bool ignores = false;  // one number among them, its attribute "ignore_index"
};

// The kernel of our own for an op, where it takes the operands (kernels/kernel_choice.h). A composite that has one is
// decomposed only to say what it means.
enum class OwnKernel : uint8_t {
  kNone,
  kMatmul,
  kScaledMatmul,
  kMatmulSum,
  kAttention,
  kAttentionBackward,
  kLinearCrossEntropy
};

enum class Distribution : uint8_t { kUniform, kNormal };

// What the ranks of a group do together, along the mesh axes of attribute `axes`. Two of them move nothing: a reshard
// says that the same tensor lies on the ranks in another way from here, and the partitioner makes the others of it; a
// wait ends an exchange that goes on beside the computation.
enum class Collective : uint8_t { kNone, kReshard, kAllGather, kReduceScatter, kAllReduce, kAllToAll, kRotate, kWait };

// As many operands as one likes, or a result for each of them; a result for each of the first half of them.
inline constexpr size_t kMany = std::numeric_limits<size_t>::max();
inline constexpr size_t kHalf = kMany - 1;

struct OpDef {
  std::string_view name;
  std::string_view summary;  // for docs/ops.md
  size_t min_inputs = 1;
  size_t max_inputs = 1;
  size_t outputs = 1;
  std::vector<AttrDef> attrs;
  uint32_t traits = 0;
  InferFn infer = nullptr;
  ShardingFn sharding = nullptr;           // none: no dimension may be split
  CountFn flops = nullptr;                 // none: 0
  CountFn bytes = nullptr;                 // none: operands read and results written once, nothing for a view
  DecomposeFn decompose = nullptr;         // none: a core op
  ScalarFn body = nullptr;                 // elementwise ops
  std::optional<IndexUse> index_use = {};  // none: nothing is chosen by an operand
  OwnKernel kernel = OwnKernel::kNone;
  std::optional<Combine> combine = {};            // core reductions
  std::optional<Distribution> distribution = {};  // random ops
  LocalAttrsFn local_attrs = nullptr;             // none: attribute `shape` of kShapeAttr alone
  Collective collective = Collective::kNone;
  std::string_view family = {};  // set by the table, for docs/ops.md

  [[nodiscard]] bool has(Trait trait) const { return (traits & static_cast<uint32_t>(trait)) != 0; }
  [[nodiscard]] bool is_core() const { return !has(Trait::kComposite) || kernel != OwnKernel::kNone; }
};

struct OpFamily {
  std::string_view name;
  std::string_view summary;
  std::vector<OpDef> ops;
};
const std::vector<OpFamily>& op_families();
const OpDef* find_op(std::string_view name);  // nullptr: no row, an ATen call's name
const OpDef& op_def(std::string_view name);   // InternalError for an unknown name
// Of an op of the table: false for an ATen call or host code.
inline bool has(const Node& node, Trait trait) { return !node.aten && op_def(node.op).has(trait); }
// Whether bytes go from rank to rank.
inline bool exchanges(Collective collective) {
  return collective != Collective::kNone && collective != Collective::kReshard && collective != Collective::kWait;
}
inline Collective collective_of(const Node& node) { return node.aten ? Collective::kNone : op_def(node.op).collective; }
inline bool is_view(const Node& node) { return has(node, Trait::kView); }

OpCall call_of(const Graph& graph, const Node& node);
// Attributes with everything that has a default filled in; an unknown, missing or ill-typed one is an InternalError.
Attrs complete_attrs(const OpDef& op, Attrs attrs);
// Checked arity, then the shape rule.
std::vector<TensorType> infer_types(const OpDef& op, const OpCall& call);

// Rough costs, for planning: floating-point operations and bytes of memory traffic when nothing is fused.
double flops_of(const OpDef& op, const OpCall& call);
double bytes_moved(const OpDef& op, const OpCall& call);

// Of a core op: whether its elements take a polynomial, a call or a random draw.
bool is_costly(const Node& node);

// A group (extract_groups()) of matmuls (contractions) of one left operand, in front of the nodes that finish them
// tile by tile: one call of the blocked kernel. Any other group is one generated kernel.
bool is_matmul_group(const Graph& group);

// verify() of the graph, and of every node against its row: arity, attributes, types.
void verify_ops(const Graph& graph);

// docs/ops.md.
std::string ops_page();

}  // namespace stepc
