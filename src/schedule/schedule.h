// Schedule: every decision about a run of a step, as plain data: the instructions, their order, their memory. Made from
// a Trace (from_trace.h, `exact`) or a Graph (from_graph.h, `fast`), and final when it is made. The executor binds and
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
#include "kernels/chunked_loss.h"
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
  uint32_t input = 0;   // kInput: the first of Schedule::inputs in this buffer
  std::string content;  // kConstant
  Space space = Space::kHost;
  bool operator==(const Buffer&) const = default;
};
std::string_view name_of(Buffer::Kind kind);

// Offset and strides count elements; in an input's buffer, from the beginning of its storage in the recording.
struct Operand {
  BufferId buffer;
  DType dtype = DType::kF32;
  Shape sizes, strides;
  int64_t offset = 0;
  bool conj = false, neg = false;
  bool operator==(const Operand&) const = default;
};

// One of the program's tensors with its required form; or an input that belongs to the executor: a number of the host's
// (kScalar), the seed of the step's draws (kRng), the rank's position on the mesh (kMesh).
struct ScheduleInput {
  InputKind kind = InputKind::kCaptured;
  std::string key;
  OperandId operand;
  bool written = false;             // by the step: its version counter is bumped
  std::optional<PartOf> part = {};  // the part of the program's tensor that this rank has
  bool operator==(const ScheduleInput&) const = default;
};
inline bool is_of_program(InputKind kind) {
  return kind != InputKind::kScalar && kind != InputKind::kRng && kind != InputKind::kMesh;
}

// One allocation of an ATen call, in the call's order: a place in the arena, or memory that outlives the step.
struct PlannedAllocation {
  uint64_t bytes = 0;
  uint64_t offset = 0;
  bool own = false;
  Space space = Space::kHost;
  bool operator==(const PlannedAllocation&) const = default;
};

// A range of the arena that only one instruction uses.
struct Scratch {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Scratch&) const = default;
};

struct Instruction {
  enum class Kind : uint8_t {
    kGenerated,      // runs `program` on the reads, then the writes
    kNodes,          // runs `nodes` as ATen calls, one a node, on a chunk of the elements at a time (node_calls.h)
    kMatmul,         // the blocked matmul that `matmul` describes
    kAttention,      // the blocked attention: `op` is its row of the op table
    kLoss,           // the blocked linear layer with its cross-entropy; on a GPU, `loss` describes it
    kOp,             // a row of the op table as ATen calls
    kAten,           // an ATen call
    kCopy,           // copies reads[0] to writes[0], between any strides
    kGuard,          // compares a read value with the expected one; a difference means another step of the program
    kEvent,          // host code of the program gets the reads and changes the writes, which are the program's memory
    kPause,          // the program gets the reads, and returns later with the writes
    kSeed,           // seeds the step's draws with a number of `generator`
    kSaveGenerator,  // copies the generator's state to `state`
    kLoadGenerator,  // copies `state` to the generator
    kCollective,     // a row of the op table that the ranks compute together
    kWait,           // its stream waits for `mark`; for a collective's: reads its results, then its operands
    kRecord,         // its stream reaches `mark`
    // Reserved; nothing makes or runs these yet.
    kSend,
    kReceive,
    kCall,
  };
  Kind kind = Kind::kOp;
  std::string op;  // a row of the op table, an ATen call, or the ops in a kernel
  std::vector<OperandId> reads, writes;
  Attrs attrs;
  std::optional<AtenCall> aten;  // kAten: value k among its arguments is read k, among its results write k
  uint32_t program = kNoProgram;
  std::optional<uint32_t> nodes;  // kNodes: index of Schedule::nodes; reads are its inputs, writes its outputs
  std::optional<MatmulCall> matmul;
  std::optional<ChunkedLoss> loss;
  // The index, among the numbers that the step reads on the host, of the number that a call gives or a guard compares.
  // A guard without it compares reads[0], a single bool that must be true.
  std::optional<uint32_t> number;
  Arg expected;        // kGuard with a number
  uint32_t event = 0;  // kEvent, kPause: of the trace
  // kEvent that supplies only numbers: it passes them on at its place, behind a guard, not before the run.
  bool in_place = false;
  uint32_t generator = 0, state = 0;
  std::vector<PlannedAllocation> allocations;
  Scratch scratch;         // of the thread that runs the step
  Scratch worker_scratch;  // of its intra-op workers: this many bytes for each, one after the other
  uint32_t stream = 0;
  std::optional<uint32_t> mark;  // kWait, kRecord, and a collective that ends with a wait
  CallId call;                   // of the trace, if it is one of its calls
  Source source;
  Work work;
  std::string why;  // the reason for this kernel
  bool operator==(const Instruction&) const = default;
};
std::string_view name_of(Instruction::Kind kind);

// What the program gets at the end.
//   kReturn   a tensor of its own; without operand: an undefined one
//   kRebind   the tensor of a slot (a gradient, an attribute); without operand: none
//   kNumber   a number: a constant, one that was read on the host (`value` is a ReadNumber with its index in `read`),
//   or
//             the only element of an operand
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

// The target of a number that host code supplies as argument `arg` of the trace's `call`.
struct HostNumber {
  CallId call;
  uint32_t arg = 0;
  std::optional<uint32_t> instruction;  // its argument `arg` is set
  std::vector<uint32_t> inputs;         // or these inputs are set; a list has several
  std::optional<int64_t> integer;       // or nothing: it is a constant of the Schedule
  bool operator==(const HostNumber&) const = default;
};

struct Schedule {
  Features features;
  int threads = 1;  // run the step, with the leading one
  Mesh mesh = {};   // all its ranks run this Schedule; of one device: no axes
  std::vector<Buffer> buffers;
  std::vector<Operand> operands;
  std::vector<ScheduleInput> inputs;
  std::vector<LoopProgram> programs;
  std::vector<Graph> nodes;             // flat_nodes()
  std::vector<std::string> generators;  // keys; 0 is the process's default generator
  std::vector<std::string> states;      // of generators: bytes; empty: the run saves it
  std::vector<Instruction> instructions;
  std::vector<ScheduleOutput> outputs;
  std::vector<HostNumber> host_numbers;
  uint32_t numbers = 0;       // read on the host by the step
  std::string device;         // "cuda:0"; empty: all memory is the host's
  uint64_t device_begin = 0;  // with a device: the arena's memory from this offset on is the device's
  uint64_t arena_bytes = 0;
  uint64_t live_lower_bound_bytes = 0;  // largest sum of live planned bytes: no arena can be smaller
  std::string layout_algorithm;
  bool operator==(const Schedule&) const = default;

  [[nodiscard]] uint64_t own_bytes() const;
  [[nodiscard]] Space space_at(uint64_t offset) const {
    return !device.empty() && offset >= device_begin ? Space::kDevice : Space::kHost;
  }
  // The arena, and memory that outlives the step.
  [[nodiscard]] uint64_t peak_bytes() const { return arena_bytes + own_bytes(); }
  // With the program's tensors, in the device's memory if there is a device: the memory that a budget counts.
  [[nodiscard]] uint64_t needed_bytes() const;
  [[nodiscard]] uint64_t input_bytes() const;
  [[nodiscard]] size_t count(Instruction::Kind kind) const;
};

int64_t bytes_of(const Operand& operand);   // of its elements
int64_t extent_of(const Operand& operand);  // one past the last element in its reach, from its buffer's start
bool draws(const Schedule& schedule);       // whether it draws random numbers

// Throws InternalError that names the first broken promise: ids are in range; windows lie inside their buffers; reads
// come after writes, and those of incoming tensors after the pause; host code gets nothing from the arena and changes
// only the program's memory; memory that an instruction uses in the arena is used by nothing else that lives then;
// collectives of the mesh have one order; streams use shared memory one after the other.
void verify(const Schedule& schedule);

// 16 hexadecimal digits: a hash of the text form.
std::string hash_of(const Schedule& schedule);
std::string to_text(const Schedule& schedule);
// Throws UserError with the line number.
Schedule parse_schedule(std::string_view text);

}  // namespace stepc
