#include <algorithm>

#include "base/check.h"
#include "kernels/node_calls.h"
#include "kernels/tensor_layout.h"
#include "schedule/schedule.h"
#include "schedule/verify_arena.h"
#include "schedule/verify_collectives.h"
#include "schedule/verify_streams.h"

namespace stepc {

namespace {

// Whether `bytes` at `offset` end by `limit`.
bool fits(uint64_t offset, uint64_t bytes, uint64_t limit) { return offset <= limit && bytes <= limit - offset; }

// First and one past the last element that the operand reaches; nullopt: too far to count.
std::optional<std::pair<int64_t, int64_t>> reach(const Operand& operand) {
  int64_t low = operand.offset;
  int64_t high = operand.offset;
  for (size_t d = 0; d < operand.sizes.size(); ++d) {
    int64_t move = 0;
    if (__builtin_mul_overflow(operand.sizes[d] - 1, operand.strides[d], &move)) return std::nullopt;
    int64_t& side = move < 0 ? low : high;
    if (__builtin_add_overflow(side, move, &side)) return std::nullopt;
  }
  if (__builtin_add_overflow(high, 1, &high)) return std::nullopt;
  return std::pair(low, high);
}

class Verifier {
 public:
  explicit Verifier(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    INTERNAL_CHECK(schedule_.threads >= 1, "{} threads", schedule_.threads);
    INTERNAL_CHECK_LE(schedule_.live_lower_bound_bytes, schedule_.arena_bytes, "the arena is too small for any layout");
    INTERNAL_CHECK(
        schedule_.device.empty() ? schedule_.device_begin == 0 : schedule_.device_begin <= schedule_.arena_bytes,
        "the memory of '{}' begins at {} of {}", schedule_.device, schedule_.device_begin, schedule_.arena_bytes);
    for (size_t b = 0; b < schedule_.buffers.size(); ++b) check_buffer(b);
    for (size_t k = 0; k < schedule_.operands.size(); ++k) check_operand(k);
    for (size_t k = 0; k < schedule_.inputs.size(); ++k) check_input(k);
    for (size_t b = 0; b < schedule_.buffers.size(); ++b) check_buffer_of_input(b);
    for (const LoopProgram& program : schedule_.programs) verify(program);
    for (const Graph& nodes : schedule_.nodes)
      INTERNAL_CHECK(flat_nodes(nodes) == nodes, "nodes that are not of one row of elements");
    for (at_ = 0; at_ < schedule_.instructions.size(); ++at_) check_instruction(schedule_.instructions[at_]);
    check_order();
    for (const HostNumber& number : schedule_.host_numbers) check_host_number(number);
    verify_collectives(schedule_);
    verify_streams(schedule_);
    verify_arena(schedule_);
  }

 private:
  const Buffer& buffer_of(const Operand& operand) const { return schedule_.buffers[operand.buffer.index()]; }
  const Operand& operand(OperandId id) const { return schedule_.operands[id.index()]; }

  // The instruction that is looked at, for messages.
  std::string here() const {
    const Instruction& one = schedule_.instructions[at_];
    return str("i{} ({} {})", at_, name_of(one.kind), one.op);
  }

  // Whether such a range of the arena is all in that memory.
  bool lies_in(Space space, uint64_t offset, uint64_t bytes) const {
    return schedule_.space_at(offset) == space && (bytes == 0 || schedule_.space_at(offset + bytes - 1) == space);
  }

  void check_buffer(size_t b) const {
    const Buffer& buffer = schedule_.buffers[b];
    if (buffer.kind == Buffer::Kind::kConstant)
      INTERNAL_CHECK_LE(buffer.content.size(), buffer.bytes, "the content of b{}", b);
    if (buffer.kind == Buffer::Kind::kArena && buffer.bytes > 0)
      INTERNAL_CHECK(lies_in(buffer.space, buffer.offset, buffer.bytes), "b{} lies in the other memory", b);
    INTERNAL_CHECK(buffer.space == Space::kHost || !schedule_.device.empty(), "b{} is a device's, and there is none",
                   b);
  }

  void check_buffer_of_input(size_t b) const {
    const Buffer& buffer = schedule_.buffers[b];
    if (buffer.kind != Buffer::Kind::kInput) return;
    INTERNAL_CHECK_LT(buffer.input, schedule_.inputs.size(), "b{}", b);
    INTERNAL_CHECK_EQ(operand(schedule_.inputs[buffer.input].operand).buffer.index(), b, "input {} does not lie in b{}",
                      buffer.input, b);
  }

  void check_operand(size_t k) const {
    const Operand& operand = schedule_.operands[k];
    INTERNAL_CHECK_LT(operand.buffer.index(), schedule_.buffers.size(), "the buffer of %{}", k);
    INTERNAL_CHECK_EQ(operand.sizes.size(), operand.strides.size(), "sizes and strides of %{}", k);
    int64_t bytes = size_of(operand.dtype);
    bool is_empty = false;
    for (int64_t size : operand.sizes) {
      INTERNAL_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes),
                     "%{} has a size of {}", k, size);
      is_empty = is_empty || size == 0;
    }
    if (is_empty) return;
    const auto reached = reach(operand);
    const bool inside = reached && reached->first >= 0 &&
                        static_cast<uint64_t>(reached->second) <=
                            buffer_of(operand).bytes / static_cast<uint64_t>(size_of(operand.dtype));
    INTERNAL_CHECK(inside, "%{} leaves b{} of {} bytes", k, operand.buffer, buffer_of(operand).bytes);
  }

  void check_input(size_t k) const {
    const ScheduleInput& input = schedule_.inputs[k];
    INTERNAL_CHECK_LT(input.operand.index(), schedule_.operands.size(), "the operand of input {}", k);
    if (is_of_program(input.kind))
      INTERNAL_CHECK(buffer_of(operand(input.operand)).kind == Buffer::Kind::kInput,
                     "input {}, {} '{}', is in a buffer of kind {}", k, name_of(input.kind), input.key,
                     name_of(buffer_of(operand(input.operand)).kind));
  }

  // ---- instructions

  void check_instruction(const Instruction& one) const {
    // Host code may be given nothing in a place where another step has a tensor.
    const bool is_host = one.kind == Instruction::Kind::kEvent || one.kind == Instruction::Kind::kPause;
    for (const auto* operands : {&one.reads, &one.writes})
      for (OperandId id : *operands)
        INTERNAL_CHECK(id.index() < schedule_.operands.size() || (is_host && !id.valid()), "{} has no operand {}",
                       here(), id);
    for (const PlannedAllocation& allocation : one.allocations)
      INTERNAL_CHECK(allocation.own || fits(allocation.offset, allocation.bytes, schedule_.arena_bytes),
                     "{}: an allocation at {} leaves the arena of {} bytes", here(), allocation.offset,
                     schedule_.arena_bytes);
    for (const PlannedAllocation& allocation : one.allocations)
      INTERNAL_CHECK(allocation.own || lies_in(allocation.space, allocation.offset, allocation.bytes),
                     "{}: an allocation at {} lies in the other memory", here(), allocation.offset);
    const uint64_t workers = static_cast<uint64_t>(schedule_.threads) - 1;
    uint64_t worker_bytes = 0;
    const bool counts = !__builtin_mul_overflow(one.worker_scratch.bytes, workers, &worker_bytes);
    INTERNAL_CHECK(fits(one.scratch.offset, one.scratch.bytes, schedule_.arena_bytes) &&
                       (worker_bytes == 0 || fits(one.worker_scratch.offset, worker_bytes, schedule_.arena_bytes)) &&
                       counts,
                   "{}: its scratch leaves the arena of {} bytes", here(), schedule_.arena_bytes);
    // Recorded calls have the host's; what a Graph has is all the device's.
    const Space scratch = schedule_.features.sm > 0 && !schedule_.device.empty() ? Space::kDevice : Space::kHost;
    INTERNAL_CHECK(lies_in(scratch, one.scratch.offset, one.scratch.bytes) || one.scratch.bytes == 0,
                   "{}: its scratch lies in the other memory", here());
    INTERNAL_CHECK(worker_bytes == 0 || lies_in(Space::kHost, one.worker_scratch.offset, worker_bytes),
                   "{}: the workers' scratch lies in a device's memory", here());
    if (one.number) INTERNAL_CHECK_LT(*one.number, schedule_.numbers, "the number of {}", here());
    if (one.aten) check_aten(one, *one.aten);
    check_kind(one);
  }

  void check_kind(const Instruction& one) const {
    using Kind = Instruction::Kind;
    switch (one.kind) {
      case Kind::kGenerated:
        return check_generated(one);
      case Kind::kNodes:
        return check_nodes(one);
      case Kind::kMatmul:
        INTERNAL_CHECK(one.matmul.has_value(), "{} says no matmul", here());
        return check_matmul(one, *one.matmul);
      case Kind::kAten:
        INTERNAL_CHECK(one.aten.has_value(), "{} has no arguments", here());
        return;
      case Kind::kCopy:
        INTERNAL_CHECK(one.reads.size() == 1 && one.writes.size() == 1 &&
                           element_count(operand(one.reads[0]).sizes) == element_count(operand(one.writes[0]).sizes),
                       "{} copies something to something else", here());
        return;
      case Kind::kGuard:
        INTERNAL_CHECK(one.writes.empty(), "{} writes something", here());
        INTERNAL_CHECK(one.number || (one.reads.size() == 1 && operand(one.reads[0]).dtype == DType::kBool &&
                                      element_count(operand(one.reads[0]).sizes) == 1),
                       "{} looks at neither a number nor a single bool", here());
        return;
      case Kind::kSaveGenerator:
      case Kind::kLoadGenerator:
        INTERNAL_CHECK_LT(one.generator, schedule_.generators.size(), "the generator of {}", here());
        INTERNAL_CHECK_LT(one.state, schedule_.states.size(), "the state of {}", here());
        INTERNAL_CHECK(one.writes.empty(), "{} writes something", here());
        return;
      case Kind::kSeed:
        return check_seed(one);
      case Kind::kAttention:
      case Kind::kLoss:
      case Kind::kOp:
      case Kind::kCollective:  // verify_collectives()
        return;
      case Kind::kEvent:
      case Kind::kPause:
        for (OperandId id : one.reads)
          INTERNAL_CHECK(!id.valid() || buffer_of(operand(id)).kind != Buffer::Kind::kArena,
                         "{} gives %{} away, which is in the arena", here(), id);
        for (OperandId id : one.writes)
          INTERNAL_CHECK(id.valid() && buffer_of(operand(id)).kind == Buffer::Kind::kInput,
                         "{} changes %{}, which is not the program's", here(), id);
        return;
      case Kind::kWait:  // verify_streams()
      case Kind::kRecord:
        return;
      case Kind::kSend:
      case Kind::kReceive:
      case Kind::kCall:
        INTERNAL_CHECK(false, "{}: nothing runs this yet", here());
    }
  }

  // Its number has a place of the executor's own.
  void check_seed(const Instruction& one) const {
    INTERNAL_CHECK_EQ(one.writes.size(), 1U, "what {} writes", here());
    const size_t generators = std::max<size_t>(schedule_.generators.size(), 1);
    INTERNAL_CHECK_LT(one.generator, generators, "the generator of {}", here());
    const Operand& to = operand(one.writes[0]);
    const Buffer& buffer = buffer_of(to);
    INTERNAL_CHECK(to.dtype == DType::kI64 && element_count(to.sizes) > 0 && buffer.kind == Buffer::Kind::kInput &&
                       schedule_.inputs[buffer.input].kind == InputKind::kRng,
                   "{} writes %{}, which is no place for a seed", here(), one.writes[0]);
  }

  const LoopProgram& program(uint32_t number) const {
    INTERNAL_CHECK_LT(number, schedule_.programs.size(), "a program of {}", here());
    return schedule_.programs[number];
  }
  static size_t count(const LoopProgram& program, LoopBuffer::Kind kind) {
    return static_cast<size_t>(std::ranges::count(program.buffers, kind, &LoopBuffer::kind));
  }

  void check_generated(const Instruction& one) const {
    const LoopProgram& program = this->program(one.program);
    INTERNAL_CHECK_EQ(count(program, LoopBuffer::Kind::kInput), one.reads.size(), "inputs of the program of {}",
                      here());
    INTERNAL_CHECK_EQ(count(program, LoopBuffer::Kind::kOutput), one.writes.size(), "outputs of the program of {}",
                      here());
    INTERNAL_CHECK_LE(static_cast<uint64_t>(program.scratch_bytes), one.scratch.bytes, "the scratch of {}", here());
    for (size_t k = 0; k < one.reads.size() + one.writes.size(); ++k) {
      const OperandId id = k < one.reads.size() ? one.reads[k] : one.writes[k - one.reads.size()];
      const LoopBuffer& buffer = program.buffers[k];
      uint64_t end = 0;
      const bool counts = operand(id).offset >= 0 &&
                          !__builtin_mul_overflow(operand(id).offset, size_of(operand(id).dtype), &end) &&
                          buffer.count <= INT64_MAX / size_of(buffer.dtype);
      INTERNAL_CHECK(counts && fits(end, static_cast<uint64_t>(buffer.count * size_of(buffer.dtype)),
                                    buffer_of(operand(id)).bytes),
                     "{}: its program goes past the end of b{} from %{}", here(), operand(id).buffer, id);
    }
  }

  void check_nodes(const Instruction& one) const {
    INTERNAL_CHECK(one.nodes && *one.nodes < schedule_.nodes.size(), "{} says no nodes", here());
    const Graph& nodes = schedule_.nodes[*one.nodes];
    INTERNAL_CHECK_EQ(nodes.inputs.size(), one.reads.size(), "inputs of the nodes of {}", here());
    INTERNAL_CHECK_EQ(nodes.outputs.size(), one.writes.size(), "outputs of the nodes of {}", here());
    const auto check = [&](OperandId id, TensorId tensor) {
      const TensorType& type = nodes.type(tensor);
      const Operand& there = operand(id);
      INTERNAL_CHECK(there.dtype == type.dtype && element_count(there.sizes) == element_count(type.shape) &&
                         is_contiguous(TensorLayout{{there.dtype, there.sizes}, there.strides}),
                     "{}: %{} is not what its nodes take", here(), id);
    };
    for (size_t r = 0; r < one.reads.size(); ++r) check(one.reads[r], nodes.inputs[r].tensor);
    for (size_t w = 0; w < one.writes.size(); ++w) check(one.writes[w], nodes.outputs[w].tensor);
  }

  void check_matmul(const Instruction& one, const MatmulCall& call) const {
    INTERNAL_CHECK_LT(call.left, one.reads.size(), "the left operand of {}", here());
    INTERNAL_CHECK(!call.products.empty(), "{} has no product", here());
    for (const MatmulCall::Product& product : call.products)
      INTERNAL_CHECK_LT(product.right, one.reads.size(), "a right operand of {}", here());
    for (const TileBuffer& buffer : call.epilogue_inputs)
      INTERNAL_CHECK_LT(buffer.place, one.reads.size(), "an input of the epilogue of {}", here());
    for (const TileBuffer& buffer : call.epilogue_outputs)
      INTERNAL_CHECK_LT(buffer.place, one.writes.size(), "an output of the epilogue of {}", here());
    if (call.epilogue_programs.empty()) {
      INTERNAL_CHECK_EQ(call.products.size(), one.writes.size(), "products of {}", here());
      return;
    }
    INTERNAL_CHECK_EQ(call.epilogue_programs.size(), kTileKinds, "epilogues of {}", here());
    for (uint32_t epilogue : call.epilogue_programs) {
      if (epilogue == kNoProgram) continue;
      const LoopProgram& kernel = program(epilogue);
      INTERNAL_CHECK_EQ(count(kernel, LoopBuffer::Kind::kInput), call.products.size() + call.epilogue_inputs.size(),
                        "inputs of the epilogue of {}", here());
      INTERNAL_CHECK_EQ(count(kernel, LoopBuffer::Kind::kOutput), call.epilogue_outputs.size(),
                        "outputs of the epilogue of {}", here());
    }
  }

  void check_aten(const Instruction& one, const AtenCall& call) const {
    for_each_value(call.args, [&](ValueId k) { INTERNAL_CHECK_LT(k.index(), one.reads.size(), "{}", here()); });
    for_each_value(call.results, [&](ValueId k) { INTERNAL_CHECK_LT(k.index(), one.writes.size(), "{}", here()); });
    for (uint32_t k : call.writes) INTERNAL_CHECK_LT(k, one.reads.size(), "what {} writes", here());
    for (const auto& [k, strides] : call.layouts) INTERNAL_CHECK_LT(k, one.reads.size(), "a layout of {}", here());
    for (const Arg& arg : call.args) {
      if (const auto* number = std::get_if<ReadNumber>(&arg))
        INTERNAL_CHECK_LT(number->read.index(), schedule_.numbers, "a number that {} takes", here());
      if (const auto* generator = std::get_if<GeneratorArg>(&arg))
        INTERNAL_CHECK_LT(generator->generator.index(), schedule_.generators.size(), "the generator of {}", here());
    }
  }

  // ---- what is there when it is read

  void check_order() {
    std::vector<bool> filled;
    for (const Buffer& buffer : schedule_.buffers)
      filled.push_back(buffer.kind == Buffer::Kind::kInput || buffer.kind == Buffer::Kind::kConstant ||
                       buffer.bytes == 0);
    for (const bool later : {true, false})
      for (const ScheduleInput& input : schedule_.inputs)
        if ((input.kind == InputKind::kIncoming) == later) filled[operand(input.operand).buffer.index()] = !later;
    for (at_ = 0; at_ < schedule_.instructions.size(); ++at_) {
      const Instruction& one = schedule_.instructions[at_];
      for (OperandId id : one.reads)
        INTERNAL_CHECK(!id.valid() || filled[operand(id).buffer.index()], "{} reads %{} in b{}, which nothing wrote",
                       here(), id, operand(id).buffer);
      for (OperandId id : one.writes)
        if (id.valid()) filled[operand(id).buffer.index()] = true;
    }
    for (size_t k = 0; k < schedule_.outputs.size(); ++k) check_output(k, filled);
  }

  void check_output(size_t k, const std::vector<bool>& filled) const {
    const ScheduleOutput& output = schedule_.outputs[k];
    const bool is_number = output.kind == ScheduleOutput::Kind::kNumber;
    if (const auto* read = std::get_if<ReadNumber>(&output.value))
      INTERNAL_CHECK_LT(read->read.index(), schedule_.numbers, "output {}", k);
    if (!output.operand.valid()) return;
    INTERNAL_CHECK_LT(output.operand.index(), schedule_.operands.size(), "output {}", k);
    const Operand& operand = this->operand(output.operand);
    INTERNAL_CHECK(filled[operand.buffer.index()], "output {} is in b{}, which nothing wrote", k, operand.buffer);
    if (is_number) {
      INTERNAL_CHECK_EQ(element_count(operand.sizes), 1, "output {} is a number", k);
      return;
    }
    // What the program keeps must not be memory that the next run uses again.
    const Buffer& buffer = buffer_of(operand);
    INTERNAL_CHECK(buffer.kind == Buffer::Kind::kOwn || buffer.kind == Buffer::Kind::kInput || buffer.bytes == 0,
                   "output {} is in b{} of kind {}, which the step keeps", k, operand.buffer, name_of(buffer.kind));
  }

  void check_host_number(const HostNumber& number) const {
    if (number.instruction) {
      INTERNAL_CHECK_LT(*number.instruction, schedule_.instructions.size(), "where a host number goes");
      const Instruction& one = schedule_.instructions[*number.instruction];
      INTERNAL_CHECK(one.aten && number.arg < one.aten->args.size(), "a host number is argument {} of i{}", number.arg,
                     *number.instruction);
    }
    for (uint32_t input : number.inputs) {
      INTERNAL_CHECK_LT(input, schedule_.inputs.size(), "where a host number goes");
      INTERNAL_CHECK(schedule_.inputs[input].kind == InputKind::kScalar, "a host number goes to input {}, {} '{}'",
                     input, name_of(schedule_.inputs[input].kind), schedule_.inputs[input].key);
    }
  }

  const Schedule& schedule_;
  size_t at_ = 0;
};

}  // namespace

void verify(const Schedule& schedule) { Verifier(schedule).run(); }

}  // namespace stepc
