// Schedule: every decision about a run of a step, as plain data: what runs, in which order, on which memory. Made of a
// Trace (from_trace.h, `exact`) or of a Graph (from_graph.h, `fast`) and final when it is made. The executor binds and
// runs it, reports print it; neither adds a decision. Needs neither LibTorch nor a code generator.
//
//   buffers        what memory there is
//     input        the program's: found anew for each run
//     constant     made from data inside the step; filled anew for each run
//     arena        at an offset of the arena: the memory that is planned
//     own          outlives the step: from the system, anew for each run
//   device         whose memory may be used beside the host's; its part of the arena lies behind the host's
//   operands       strided windows on buffers
//   instructions   in the order in which they are begun; each reads and writes operands
//   streams        what stands on one stream runs one after the other. A collective with a mark runs on a stream beside
//                  stream 0: it begins once all before it on stream 0 has ended, and the wait for its mark ends it
//   outputs        what the program gets at the end
//
// The text form (schedule_text.cpp shows it) reads back to the same value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "cost/target.h"
#include "ir/attrs.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "kernels/matmul_call.h"
#include "loops/loop_program.h"

namespace stepc {

using BufferId = Id<struct BufferTag>;
using OperandId = Id<struct OperandTag>;

struct Buffer {
  enum class Kind : uint8_t { kInput, kConstant, kArena, kOwn };
  Kind kind = Kind::kArena;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // kArena
  uint32_t input = 0;   // kInput: the first of Schedule::inputs that lies in it
  std::string content;  // kConstant
  Space space = Space::kHost;
  bool operator==(const Buffer&) const = default;
};
std::string_view name_of(Buffer::Kind kind);

// Offset and strides count elements; of an input's buffer, from where its storage began when the step was recorded.
struct Operand {
  BufferId buffer;
  DType dtype = DType::kF32;
  Shape sizes, strides;
  int64_t offset = 0;
  bool conj = false, neg = false;
  bool operator==(const Operand&) const = default;
};

// One of the program's tensors and how it must look; or what stands beside them and is the executor's own: a number of
// the host's (kScalar), the seed of the step's draws (kRng), where the rank stands on the mesh (kMesh).
struct ScheduleInput {
  InputKind kind = InputKind::kCaptured;
  std::string key;
  OperandId operand;
  bool written = false;             // by the step: autograd is told
  std::optional<PartOf> part = {};  // of the program's tensor: this rank's
  bool operator==(const ScheduleInput&) const = default;
};
inline bool is_of_program(InputKind kind) {
  return kind != InputKind::kScalar && kind != InputKind::kRng && kind != InputKind::kMesh;
}

// What an ATen call takes from the allocator, in the order in which it asks: a place in the arena, or memory that
// outlives the step.
struct PlannedAllocation {
  uint64_t bytes = 0;
  uint64_t offset = 0;
  bool own = false;
  Space space = Space::kHost;
  bool operator==(const PlannedAllocation&) const = default;
};

// A stretch of the arena that one instruction has to itself.
struct Scratch {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Scratch&) const = default;
};

struct Instruction {
  enum class Kind : uint8_t {
    kGenerated,      // `program` on the reads, then the writes
    kNodes,          // `nodes` as ATen calls, one a node, on a stretch of the elements at a time (node_calls.h)
    kMatmul,         // the blocked matmul, as `matmul` says
    kAttention,      // the blocked attention: `op` is its row of the op table
    kLoss,           // the blocked linear layer with its cross-entropy
    kOp,             // a row of the op table as ATen calls
    kAten,           // an ATen call
    kCopy,           // reads[0] to writes[0], whatever their strides
    kGuard,          // what was read must be as expected, or this is not the program's step
    kEvent,          // host code of the program runs, is given the reads and changes the writes, the program's memory
    kPause,          // the program gets the reads, and comes back later with the writes
    kSeed,           // a number of `generator` seeds the step's draws from it
    kSaveGenerator,  // `state` becomes `generator`'s
    kLoadGenerator,  // and back
    kCollective,     // a row of the op table that the ranks do together
    kWait,           // its stream goes on once `mark` is reached; of a collective: reads its results, then its operands
    kRecord,         // its stream reaches `mark`
    // Places kept; nothing makes or runs these yet.
    kSend,
    kReceive,
    kCall,
  };
  Kind kind = Kind::kOp;
  std::string op;  // a row of the op table, an ATen call, or the ops that a kernel is made of
  std::vector<OperandId> reads, writes;
  Attrs attrs;
  std::optional<AtenCall> aten;  // kAten: value k of its arguments is read k, of its results write k
  uint32_t program = kNoProgram;
  std::optional<uint32_t> nodes;  // kNodes: of Schedule::nodes; reads are its inputs, writes its outputs
  std::optional<MatmulCall> matmul;
  // Among the numbers that the step reads on the host: which one a call gives, or a guard looks at. A guard without
  // looks at reads[0], a single bool that must be true.
  std::optional<uint32_t> number;
  Arg expected;        // kGuard with a number
  uint32_t event = 0;  // kEvent, kPause: of the trace's
  // kEvent that gives numbers alone: they are handed on there, behind a guard, not before the run.
  bool in_place = false;
  uint32_t generator = 0, state = 0;
  std::vector<PlannedAllocation> allocations;
  Scratch scratch;         // of the thread that runs the step
  Scratch worker_scratch;  // of its intra-op workers: so many bytes each, one after the other
  uint32_t stream = 0;
  std::optional<uint32_t> mark;  // kWait, kRecord, and a collective that a wait ends
  CallId call;                   // of the trace, where it is one
  Source source;
  Work work;
  std::string why;  // this and no other kernel
  bool operator==(const Instruction&) const = default;
};
std::string_view name_of(Instruction::Kind kind);

// What the program gets at the end.
//   kReturn   a tensor of its own; none: an undefined one
//   kRebind   what it finds in a slot (a gradient, an attribute); none: nothing
//   kNumber   a number: a constant, one that was read on the host (`value` is a ReadNumber whose `read` counts those),
//             or the only element of an operand
struct ScheduleOutput {
  enum class Kind : uint8_t { kReturn, kRebind, kNumber };
  Kind kind = Kind::kReturn;
  OperandId operand;
  InputKind owner = InputKind::kGradient;  // kRebind
  std::string key;
  Arg value;  // kNumber without operand
  std::optional<PartOf> part = {};
  bool operator==(const ScheduleOutput&) const = default;
};

// Where a number goes that host code supplies as argument `arg` of the trace's `call`.
struct HostNumber {
  CallId call;
  uint32_t arg = 0;
  std::optional<uint32_t> instruction;  // into its argument `arg`
  std::vector<uint32_t> inputs;         // or into these inputs; a list has several
  std::optional<int64_t> integer;       // or nowhere: it is built in
  bool operator==(const HostNumber&) const = default;
};

struct Schedule {
  Features features;
  int threads = 1;  // that run the step, the leader included
  Mesh mesh = {};   // whose ranks all run this; of one device: no axes
  std::vector<Buffer> buffers;
  std::vector<Operand> operands;
  std::vector<ScheduleInput> inputs;
  std::vector<LoopProgram> programs;
  std::vector<Graph> nodes;             // flat_nodes()
  std::vector<std::string> generators;  // keys; 0 is the process's default generator
  std::vector<std::string> states;      // of generators: bytes, or empty for one that the run saves
  std::vector<Instruction> instructions;
  std::vector<ScheduleOutput> outputs;
  std::vector<HostNumber> host_numbers;
  uint32_t numbers = 0;       // that the step reads on the host
  std::string device;         // "cuda:0"; empty: all is the host's memory
  uint64_t device_begin = 0;  // with a device: what lies in the arena from here on is its memory
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;  // largest sum of live planned bytes: no arena can be smaller
  std::string layout_algorithm;
  bool operator==(const Schedule&) const = default;

  [[nodiscard]] uint64_t own_bytes() const;
  [[nodiscard]] Space space_at(uint64_t offset) const {
    return !device.empty() && offset >= device_begin ? Space::kDevice : Space::kHost;
  }
  // The arena, and what outlives the step.
  [[nodiscard]] uint64_t peak_bytes() const { return arena_bytes + own_bytes(); }
  // With the program's tensors: what a memory budget counts.
  [[nodiscard]] uint64_t needed_bytes() const;
  [[nodiscard]] uint64_t input_bytes() const;
  [[nodiscard]] size_t count(Instruction::Kind kind) const;
};

int64_t bytes_of(const Operand& operand);   // of its elements
int64_t extent_of(const Operand& operand);  // one past the last element that it reaches, from its buffer's start
bool draws(const Schedule& schedule);       // random numbers of its own

// Throws InternalError naming the first broken promise: ids in range, windows inside their buffers, reads after writes,
// of incoming tensors after the pause, what host code is given not in the arena and what it changes the program's, what
// one instruction uses in the arena not used by what lives meanwhile, collectives of the mesh in one order, what
// streams share used by one after the other.
void verify(const Schedule& schedule);

// 16 hexadecimal digits of what the text form says.
std::string hash_of(const Schedule& schedule);
std::string to_text(const Schedule& schedule);
// Throws UserError with the line number.
Schedule parse_schedule(std::string_view text);

}  // namespace stepc
