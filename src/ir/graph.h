// Graph: one training step as a pure program in SSA form. Nodes make tensors from tensors; nothing is changed in place
// and nothing aliases. What the step changes in the program's memory leaves as outputs that say which input they
// update. Plain data: the Graph owns everything, ids are dense indices into its vectors, nodes stand in program order.
//
//   input %0: f32[4, 8] = parameter "weight"
//   input %1: f32[2, 8] = batch "0"
//   %2: f32[2, 4] = matmul(%1, %0) {transpose_a=false, transpose_b=true} | forward "proj"
//   %3: f32[4, 8] = ...                                                  | update ""
//   update %0 = %3
//   return %2
//
// A Graph for several devices has a mesh. While it is the whole step, its tensors may have shardings, which say how
// each lies on the ranks; once it is one rank's step (passes/partition), its inputs and outputs say what they are parts
// of.
//
//   mesh dp_shard=2
//   input %0: f32[8, 4] <8/dp_shard, 4> = batch "0"
//   input %0: f32[4, 4] = batch "0" part of <8/dp_shard, 4>
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "ir/attrs.h"
#include "ir/dtype.h"
#include "ir/mesh.h"
#include "ir/sharding.h"
#include "ir/trace.h"

namespace stepc {

// A value of a Graph is a tensor; a value of a Trace is a window on a storage. Their ids do not mix.
using TensorId = Id<struct TensorTag>;
using NodeId = Id<struct NodeTag>;
using Shape = std::vector<int64_t>;

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const TensorType&) const = default;
};
int64_t element_count(const Shape& shape);
int64_t bytes_of(const TensorType& type);
Shape contiguous_strides(const Shape& shape);
// Whether elements lie so; strides of dimensions with one element do not count, nor any where there is no element.
bool is_dense(const Shape& shape, const Shape& strides);
// Whether elements fill one block of memory, each once, in whatever order of dimensions.
bool fills_block(const Shape& shape, const Shape& strides);
// The strides of (N, C, ...), of 4 or 5 dimensions, whose channels lie next to each other; empty: of other tensors.
Shape channels_last_strides(const Shape& shape);
std::string to_text(const TensorType& type);  // "f32[4, 8]"

struct GraphTensor {
  TensorType type;
  NodeId producer;     // invalid: a graph input
  uint32_t place = 0;  // which of the producer's outputs, or which graph input
  std::optional<Sharding> sharding = {};
  bool operator==(const GraphTensor&) const = default;
};

// Where a node comes from in the user's program.
struct Source {
  Phase phase = Phase::kForward;
  std::string module;
  bool operator==(const Source&) const = default;
};
// Whether the module is one of a list, or inside of one: a number stands in its path, as in "model.layers.3.mlp".
bool is_of_a_layer(const Source& source);

// What an ATen call without a row in the op table needs to be run, with its effects. Its tensor arguments are the
// node's inputs, its fresh results and then the new contents of what it writes are the node's outputs.
struct AtenCall {
  // ValueId k: the node's input k; each occurrence is an input of its own, in order. Where ATen takes a number, that
  // input is 0-dim and its value is passed.
  std::vector<Arg> args;
  std::vector<Arg> results;      // ValueId k: the node's output k, in order; none: not a fresh tensor
  std::vector<uint32_t> writes;  // inputs that the call changes; their new contents are the last outputs
  bool draws = false;            // takes random numbers: not repeated, not merged, kept in order
  // Inputs that did not lie contiguous when the call was recorded, and their strides. A kernel may count on what lay
  // before it: many are called behind a contiguous() of their own.
  std::vector<std::pair<uint32_t, Shape>> layouts;
  // Fresh results that it left channels-last when it was recorded, and their strides.
  std::vector<std::pair<uint32_t, Shape>> result_layouts;
  // What its kernel took from the allocator beside its results when it was recorded: at most at once on the step's
  // thread, and on each intra-op worker. `measured`: known.
  uint64_t workspace_bytes = 0;
  uint64_t worker_bytes = 0;
  bool measured = false;
  std::optional<CallRule> rule;  // what the program says of an operator of its own
  bool operator==(const AtenCall&) const = default;
};

struct Node {
  std::string op;  // a name of the op table ("matmul"), or an ATen call's with '::'
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  Attrs attrs;
  std::optional<AtenCall> aten;
  Source source;
  std::optional<uint32_t> group;  // nodes of one group stand in a row and run as one kernel
  bool operator==(const Node&) const = default;
};

enum class InputKind : uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kBuffer,
  kBatch,
  kCaptured,
  kIncoming,  // what the program gives the step at a pause (HostCode)
  kHost,      // a tensor that the host makes of data of its own inside the step
  kScalar,    // a host number, as a 0-dim tensor
  kRng,       // (seed, step) of this call's random draws from one generator, i64[2]
  kMesh,      // where this rank stands on each axis of the mesh, i64[axes]
};
std::string_view name_of(InputKind kind);
// The program's slots as inputs, and back; nullopt for what no slot holds. A constant is captured.
InputKind kind_of(Owner owner);
std::optional<Owner> owner_of(InputKind kind);
// The key of the scalar input that the host gives as argument `arg` of `call`, in `event`; of a list, its element.
std::string host_number_key(const HostEvent& event, CallId call, size_t arg);
std::string host_number_key(const HostEvent& event, CallId call, size_t arg, size_t element);

// The key of a generator's rng input, and back: its place among the trace's generators, empty for the default one.
std::string rng_key(GeneratorId generator);
GeneratorId generator_of(const std::string& rng_key);

// The whole tensor that a tensor of one rank's step is a part of.
struct PartOf {
  Shape shape;
  Sharding sharding;
  bool operator==(const PartOf&) const = default;
};

// A window of the program's own memory: offset and strides in elements. Empty strides: contiguous.
struct GraphInput {
  InputKind kind = InputKind::kCaptured;
  std::string key;
  TensorId tensor;
  Shape strides;
  int64_t offset = 0;
  std::optional<PartOf> part = {};
  bool operator==(const GraphInput&) const = default;
};

// Host code of the program that runs between kernels: the loop around a model, or an optimizer that computes on the
// host. It stands in the Graph as an opaque node, so that what follows from it, and what must be there for it, is
// dataflow like any other, and no pass needs to know of it. (Opaque draws and host code keep their order.)
//
//   %7: f32[4], %8: f32[2, 8] = host::pause(0, t[%5], t[%6, %1], [3, 1]) writes 1, 2 draws | forward ""
//
//   0          its place among the trace's events
//   t[%5]      what the program is given, or undefined: a pause's outputs, the gradients that an optimizer finds
//   t[%6, %1]  what must lie in the program's memory by then: of inputs 3 and 1, what they hold now
//   %7, %8     what these inputs hold afterwards; `writes` counts the node's tensors
//
// Inputs of kind incoming are first filled by a pause. What an input held before host code that changes it is gone
// afterwards: a schedule must have read it by then.
inline constexpr std::string_view kHostPause = "host::pause", kHostEvent = "host::event";
bool is_host_code(const Node& node);
struct HostCode {
  uint32_t event = 0;
  bool pauses = false;
  struct Given {
    TensorId tensor;  // invalid: nothing
    Shape strides;    // how the program sees it; empty: contiguous
  };
  struct Slot {
    uint32_t input = 0;
    TensorId before, after;
  };
  std::vector<Given> given;
  std::vector<Slot> slots;
};
HostCode host_code_of(const Node& node);
// Its node, without a source; the outputs are the slots' new contents. `after` of the slots is not looked at.
Node node_of(const HostCode& code);

// What leaves the step.
//   kUpdate   new contents of an input's memory
//   kRebind   a tensor that the program finds in a slot of its own afterwards (a gradient); none: the slot is cleared
//   kGuard    a 0-dim bool that must be true, or this graph is not the step's; checked before anything is updated
//   kReturn   a tensor that the step returns; none: an undefined one
//   kNumber   a 0-dim tensor that the step returns as a host number
struct GraphOutput {
  enum class Kind : uint8_t { kUpdate, kRebind, kGuard, kReturn, kNumber };
  Kind kind = Kind::kReturn;
  TensorId tensor;
  uint32_t input = 0;                      // kUpdate: which graph input
  InputKind owner = InputKind::kGradient;  // kRebind: whose slot,
  std::string key;                         // and which
  Shape strides;                           // how the program sees it; empty: contiguous
  std::optional<PartOf> part = {};
  bool operator==(const GraphOutput&) const = default;
};

struct Graph {
  Mesh mesh;                // of one device: no axes
  std::vector<Node> nodes;  // producers before users
  std::vector<GraphTensor> tensors;
  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;
  bool operator==(const Graph&) const = default;

  [[nodiscard]] const TensorType& type(TensorId id) const { return tensors[id.index()].type; }
  [[nodiscard]] const Shape& shape(TensorId id) const { return type(id).shape; }
  // The node that makes a tensor; nullptr for a graph input.
  [[nodiscard]] const Node* producer(TensorId id) const;

  // Appends. The input's tensor and the node's outputs are made here.
  TensorId add_input(GraphInput input, TensorType type);
  NodeId add_node(Node node, const std::vector<TensorType>& output_types);
};

// How often each tensor is read, graph outputs included; by tensor.
std::vector<uint32_t> use_counts(const Graph& graph);

// The nodes of one group as a Graph of their own: its inputs are the tensors that the group reads from outside, in the
// order in which it reads them (captured "0", "1", ..., contiguous), its returns those that the rest of `graph` reads.
struct GroupGraph {
  uint32_t group = 0;
  Graph graph;
  std::vector<TensorId> inputs, outputs;  // as tensors of the whole graph, in the order of graph.inputs and .outputs
};
// All groups, in the order in which they stand.
std::vector<GroupGraph> extract_groups(const Graph& graph);

// Throws InternalError naming the first promise that `graph` breaks: ids in range, one definition a tensor and before
// its uses, updates that fit their input, opaque calls whose tensors are numbered as AtenCall says, host code that
// names inputs, incoming ones read from pauses alone, groups without gaps. What ops mean is checked by verify_ops() in
// ops/.
void verify(const Graph& graph);

// The text form; parse_graph(to_text(g)) == g. parse_graph throws UserError with the line number.
std::string to_text(const Graph& graph);
Graph parse_graph(std::string_view text);

}  // namespace stepc
