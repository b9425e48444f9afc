// Lanes are explicit: what moves with the vector loop's variable is an LLVM vector, the rest a scalar. A vector loop
// runs whole vectors first, a few at a time where it accumulates, and then once under a mask, so that an element's bits
// do not depend on where it stands; lanes and copies of an accumulator are combined in a fixed order.
#include "codegen/llvm_module.h"

#include <bit>
#include <functional>
#include <limits>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>

#include "base/check.h"
#include "codegen/llvm_lanes.h"
#include "codegen/llvm_scalar.h"

namespace stepc {

namespace {

class PhaseEmitter {
 public:
  PhaseEmitter(llvm::Module& module, const LoopProgram& program, const LoopPhase& phase, const CpuTarget& target,
               const std::string& name)
      : program_(program),
        phase_(phase),
        b_(module.getContext()),
        scalar_(b_, module, target),
        lanes_(made_lanes(target)) {
    llvm::Type* pointer = b_.getPtrTy();
    llvm::Type* number = b_.getInt64Ty();
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, number, number, pointer}, false);
    function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
    function_->addFnAttr(llvm::Attribute::NoUnwind);
    function_->addFnAttr("target-cpu", target.name);
    function_->addFnAttr("target-features", target.features);
    function_->addFnAttr("prefer-vector-width", std::to_string(target.vector_bits));
    entry_ = llvm::BasicBlock::Create(module.getContext(), "entry", function_);
    b_.SetInsertPoint(entry_);
    values_.resize(phase.instructions.size());
    variables_.resize(phase.variables.size());
    accumulators_.resize(phase.instructions.size());
  }

  void emit() {
    bind_buffers();
    auto* body = llvm::BasicBlock::Create(b_.getContext(), "body", function_);
    b_.SetInsertPoint(body);
    emit_range(0, phase_.instructions.size());
    b_.CreateRetVoid();
    b_.SetInsertPoint(entry_);
    b_.CreateBr(body);
  }

 private:
  using V = llvm::Value;
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  // Pairs save a move a vector of bf16 that is read and two where one is written; they cost one where other elements
  // in a row are.
  LlvmLanes made_lanes(const CpuTarget& target) {
    int gain = 0;
    std::vector<uint32_t> open;
    for (const LoopInstruction& one : phase_.instructions) {
      if (one.op == LoopOp::kLoop) open.push_back(one.loop);
      if (one.op == LoopOp::kEnd) open.pop_back();
      if (one.op != LoopOp::kLoad && one.op != LoopOp::kStore) continue;
      const auto vector = std::ranges::find_if(open, [&](uint32_t loop) { return phase_.variables[loop].vector; });
      if (vector == open.end() || one.index.stride_of(*vector) != 1) continue;
      const bool is_narrow = program_.buffers[one.buffer].dtype == DType::kBF16;
      gain += !is_narrow ? -1 : one.op == LoopOp::kStore ? 2 : 1;
    }
    const auto in_a_register = static_cast<unsigned>(target.vector_bits / 32);
    return {b_, scalar_, gain > 0 ? 2 * in_a_register : in_a_register, gain > 0};
  }

  // ---- memory

  void bind_buffers() {
    for (size_t k = 0; k < program_.buffers.size(); ++k) {
      const LoopBuffer& buffer = program_.buffers[k];
      if (buffer.kind == LoopBuffer::Kind::kScratch)
        pointers_.push_back(b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), function_->getArg(3),
                                                          static_cast<uint64_t>(buffer.scratch_byte)));
      else if (buffer.kind == LoopBuffer::Kind::kLocal)
        pointers_.push_back(local_memory(buffer));
      else
        pointers_.push_back(
            b_.CreateLoad(b_.getPtrTy(), b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), function_->getArg(0), k)));
    }
    zero_ = b_.CreateAlloca(b_.getInt64Ty());
    b_.CreateStore(b_.getInt64(0), zero_);
  }

  V* local_memory(const LoopBuffer& buffer) {
    auto* slots =
        b_.CreateAlloca(llvm::ArrayType::get(scalar_.memory_type(buffer.dtype), static_cast<uint64_t>(buffer.count)));
    slots->setAlignment(llvm::Align(64));
    return slots;
  }

  V* i64(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  // The form at lane 0, and how far it moves a lane.
  V* at_first_lane(const Affine& affine) {
    V* sum = affine.offset == 0 && !affine.terms.empty() ? nullptr : i64(affine.offset);
    for (const AffineTerm& term : affine.terms) {
      V* part = variables_[term.loop];
      if (term.stride != 1) part = b_.CreateMul(part, i64(term.stride));
      sum = sum == nullptr ? part : b_.CreateAdd(sum, part);
    }
    return sum;
  }
  [[nodiscard]] int64_t lane_stride(const Affine& affine) const {
    return in_vector() ? affine.stride_of(static_cast<uint32_t>(vector_variable_)) : 0;
  }
  [[nodiscard]] bool in_vector() const { return vector_variable_ != kNone; }
  V* splat(V* value) { return lanes_.splat(value); }
  V* index_vector(const Affine& affine) {
    V* first = at_first_lane(affine);
    const int64_t stride = lane_stride(affine);
    if (stride == 0) return first;
    return b_.CreateAdd(splat(first), b_.CreateMul(lanes_.elements(), splat(i64(stride))));
  }
  V* address(const LoopBuffer& buffer, uint32_t number, V* index) {
    return b_.CreateGEP(scalar_.memory_type(buffer.dtype), pointers_[number], index);
  }
  V* emit_load(const LoopInstruction& one) {
    const LoopBuffer& buffer = program_.buffers[one.buffer];
    V* condition = one.args[1] >= 0 ? values_[static_cast<size_t>(one.args[1])] : nullptr;
    V* chosen = one.args[0] >= 0 ? values_[static_cast<size_t>(one.args[0])] : nullptr;
    const int64_t stride = lane_stride(one.index);
    const auto varies = [](V* value) { return value != nullptr && LlvmScalar::is_vector(value); };
    const bool in_a_row = stride == 1 && !varies(chosen);
    V* index = in_a_row || (stride == 0 && !varies(chosen)) ? at_first_lane(one.index) : index_vector(one.index);
    if (chosen != nullptr) {
      V* moved = b_.CreateMul(chosen, varies(chosen) ? splat(i64(one.indirect)) : i64(one.indirect));
      const bool is_vector = varies(chosen) || varies(index);
      index = is_vector ? b_.CreateAdd(splat(index), splat(moved)) : b_.CreateAdd(index, moved);
    }
    V* place = address(buffer, one.buffer, index);
    if (in_a_row) return lanes_.load(buffer.dtype, place, condition);
    if (stride != 0 || varies(chosen) || varies(condition)) return lanes_.gather(buffer.dtype, splat(place), condition);
    if (condition != nullptr) place = b_.CreateSelect(condition, place, zero_);
    const llvm::Align align(static_cast<uint64_t>(size_of(buffer.dtype)));
    return scalar_.widened(b_.CreateAlignedLoad(scalar_.memory_type(buffer.dtype), place, align), buffer.dtype);
  }

  // A store rounds: what was just rounded to the same type need not be.
  [[nodiscard]] size_t unrounded(int32_t value, DType dtype) const {
    const LoopInstruction& made = phase_.instructions[static_cast<size_t>(value)];
    if (made.op != LoopOp::kRoundTo || made.dtype != dtype) return static_cast<size_t>(value);
    const bool is_same = phase_.instructions[static_cast<size_t>(made.args[0])].type == made.type;
    return static_cast<size_t>(is_same ? made.args[0] : value);
  }

  void emit_store(const LoopInstruction& one) {
    const LoopBuffer& buffer = program_.buffers[one.buffer];
    V* value = values_[unrounded(one.args[0], buffer.dtype)];
    const int64_t stride = lane_stride(one.index);
    if (stride == 1) return lanes_.store(value, buffer.dtype, address(buffer, one.buffer, at_first_lane(one.index)));
    if (stride != 0) return lanes_.scatter(value, buffer.dtype, address(buffer, one.buffer, index_vector(one.index)));
    INTERNAL_CHECK(!LlvmScalar::is_vector(value), "lanes are stored to one place");
    const llvm::Align align(static_cast<uint64_t>(size_of(buffer.dtype)));
    b_.CreateAlignedStore(scalar_.narrowed(value, buffer.dtype), address(buffer, one.buffer, at_first_lane(one.index)),
                          align);
  }

  // ---- accumulators

  struct Accumulator {
    std::vector<llvm::AllocaInst*> copies;
    bool across_lanes = false;  // lanes are combined at the end
  };

  static bool accumulates(const LoopInstruction& one) {
    return one.op == LoopOp::kAccumulate || one.op == LoopOp::kAccumulateProduct;
  }
  // Whether something inside a vector loop is added to `accumulator`.
  [[nodiscard]] bool gathers_lanes(size_t accumulator) const {
    int vectors = 0;
    std::vector<bool> open;
    for (size_t i = accumulator + 1; i < phase_.instructions.size(); ++i) {
      const LoopInstruction& one = phase_.instructions[i];
      const bool is_mine = one.args[0] == static_cast<int32_t>(accumulator);
      if (one.op == LoopOp::kLoop) {
        open.push_back(phase_.variables[one.loop].vector);
        vectors += open.back() ? 1 : 0;
      } else if (one.op == LoopOp::kEnd) {
        if (open.empty()) return false;
        vectors -= open.back() ? 1 : 0;
        open.pop_back();
      } else if (one.op == LoopOp::kFinish && is_mine) {
        return false;
      } else if (accumulates(one) && is_mine && vectors > 0) {
        return true;
      }
    }
    return false;
  }

  V* start_value(const LoopInstruction& one) {
    const bool is_real = one.type == ValueType::kF32 || one.type == ValueType::kF64;
    llvm::Type* type = scalar_.type_of(one.type);
    return is_real ? llvm::ConstantFP::get(type, one.real)
                   : static_cast<V*>(llvm::ConstantInt::get(type, static_cast<uint64_t>(one.integer), true));
  }

  void emit_accumulator(size_t place, const LoopInstruction& one) {
    Accumulator made;
    made.across_lanes = !in_vector() && gathers_lanes(place);
    const bool is_vector = in_vector() || made.across_lanes;
    V* start = start_value(one);
    if (is_vector) start = splat(start);
    for (int copy = 0; copy < (made.across_lanes ? kCopies : 1); ++copy) {
      const llvm::IRBuilderBase::InsertPointGuard guard(b_);
      llvm::IRBuilder<> at_entry(entry_, entry_->begin());
      made.copies.push_back(at_entry.CreateAlloca(start->getType()));
    }
    for (llvm::AllocaInst* slot : made.copies) b_.CreateStore(start, slot);
    accumulators_[place] = std::move(made);
  }

  void emit_accumulate(const LoopInstruction& one) {
    const auto place = static_cast<size_t>(one.args[0]);
    const Accumulator& accumulator = accumulators_[place];
    const size_t copy = accumulator.across_lanes && in_vector() ? copy_ : 0;
    llvm::AllocaInst* slot = accumulator.copies[copy];
    V* old = b_.CreateLoad(slot->getAllocatedType(), slot);
    const auto argument = [&](size_t k) {
      V* value = values_[static_cast<size_t>(one.args[k])];
      return LlvmScalar::is_vector(old) ? splat(value) : value;
    };
    V* now = one.op == LoopOp::kAccumulateProduct
                 ? scalar_.fused(argument(1), argument(2), old)
                 : scalar_.combined(phase_.instructions[place].combine, old, argument(1));
    if (lanes_.mask() != nullptr && LlvmScalar::is_vector(old)) now = b_.CreateSelect(lanes_.mask(), now, old);
    b_.CreateStore(now, slot);
  }

  V* emit_finish(const LoopInstruction& one) {
    const auto place = static_cast<size_t>(one.args[0]);
    const Accumulator& accumulator = accumulators_[place];
    const Combine combine = phase_.instructions[place].combine;
    std::vector<V*> parts;
    for (llvm::AllocaInst* slot : accumulator.copies) parts.push_back(b_.CreateLoad(slot->getAllocatedType(), slot));
    if (!accumulator.across_lanes) return parts[0];
    for (size_t half = parts.size() / 2; half > 0; half /= 2)
      for (size_t k = 0; k < half; ++k) parts[k] = scalar_.combined(combine, parts[k], parts[k + half]);
    V* all = parts[0];
    for (unsigned half = lanes_.count() / 2; half > 0; half /= 2) {
      std::vector<int> low, high;
      for (unsigned lane = 0; lane < half; ++lane) {
        low.push_back(static_cast<int>(lane));
        high.push_back(static_cast<int>(lane + half));
      }
      all = scalar_.combined(combine, b_.CreateShuffleVector(all, low), b_.CreateShuffleVector(all, high));
    }
    return b_.CreateExtractElement(all, uint64_t{0});
  }

  // ---- loops

  [[nodiscard]] size_t end_of(size_t loop) const {
    int depth = 0;
    for (size_t i = loop; i < phase_.instructions.size(); ++i) {
      if (phase_.instructions[i].op == LoopOp::kLoop) ++depth;
      if (phase_.instructions[i].op == LoopOp::kEnd && --depth == 0) return i;
    }
    INTERNAL_CHECK(false, "a loop without an end");
    return 0;
  }

  void set_variable(uint32_t number, V* value) {
    variables_[number] = value;
    for (size_t k = 0; k < phase_.variables.size(); ++k) {
      const LoopVariable& digit = phase_.variables[k];
      if (digit.kind != LoopVariable::Kind::kDigit || digit.source != number) continue;
      V* quotient = digit.divisor == 1 ? value : b_.CreateUDiv(value, i64(digit.divisor));
      const bool is_top = digit.divisor * digit.extent >= extent_of(number);
      variables_[k] = is_top ? quotient : b_.CreateURem(quotient, i64(digit.extent));
    }
  }
  [[nodiscard]] int64_t extent_of(uint32_t number) const {
    const LoopVariable& variable = phase_.variables[number];
    return variable.kind == LoopVariable::Kind::kItem ? phase_.items : variable.extent;
  }

  std::pair<V*, V*> bounds_of(uint32_t number) {
    const LoopVariable& variable = phase_.variables[number];
    switch (variable.kind) {
      case LoopVariable::Kind::kItem:
        return {function_->getArg(1), function_->getArg(2)};
      case LoopVariable::Kind::kChunk: {
        V* low = b_.CreateMul(variables_[0], i64(variable.block));
        V* high = b_.CreateAdd(low, i64(variable.block));
        return {low, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, i64(variable.extent))};
      }
      default:
        return {i64(0), i64(variable.extent)};
    }
  }

  // for (variable = low; variable < high; variable += step) body()
  void counted_loop(uint32_t number, V* low, V* high, int64_t step, const std::function<void()>& body) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* turn = llvm::BasicBlock::Create(b_.getContext(), "turn", function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", function_);
    b_.CreateCondBr(b_.CreateICmpSLT(low, high), turn, after);
    b_.SetInsertPoint(turn);
    llvm::PHINode* variable = b_.CreatePHI(b_.getInt64Ty(), 2);
    variable->addIncoming(low, before);
    set_variable(number, variable);
    body();
    V* next = b_.CreateAdd(variable, i64(step), "", true, true);
    variable->addIncoming(next, b_.GetInsertBlock());
    b_.CreateCondBr(b_.CreateICmpSLT(next, high), turn, after);
    b_.SetInsertPoint(after);
  }

  // How many vectors a turn takes: several where the turn before would have to be waited for.
  [[nodiscard]] int copies_of(size_t first, size_t last) const {
    constexpr size_t kLongBody = 60;
    if (last - first > kLongBody) return 1;
    for (size_t i = first; i < last; ++i) {
      const LoopInstruction& one = phase_.instructions[i];
      if (accumulates(one) && static_cast<size_t>(one.args[0]) < first) return kCopies;
    }
    return 1;
  }

  void vector_loop(uint32_t number, V* low, V* high, size_t first, size_t last) {
    vector_variable_ = number;
    const int64_t width = lanes_.count();
    const auto whole_up_to = [&](V* from, int64_t step) {
      V* count = b_.CreateSub(high, from);
      return b_.CreateAdd(from, b_.CreateMul(b_.CreateSDiv(count, i64(step)), i64(step)));
    };
    const int copies = copies_of(first, last);
    V* stop = whole_up_to(low, copies * width);
    counted_loop(number, low, stop, copies * width, [&] {
      V* base = variables_[number];
      for (int copy = 0; copy < copies; ++copy) {
        copy_ = static_cast<size_t>(copy);
        if (copy > 0) set_variable(number, b_.CreateAdd(base, i64(copy * width)));
        if (!prefetches_.empty()) emit_prefetches(phase_.instructions[around_.back()].loop);
        emit_range(first, last);
      }
      copy_ = 0;
    });
    // The rest, the last of it fewer lanes than a vector has.
    counted_loop(number, stop, high, width, [&] {
      lanes_.limit(b_.CreateSub(high, variables_[number]));
      emit_range(first, last);
      lanes_.unlimited();
    });
    vector_variable_ = kNone;
  }

  void emit_loop(size_t place, size_t end) {
    const uint32_t number = phase_.instructions[place].loop;
    const auto [low, high] = bounds_of(number);
    if (phase_.variables[number].vector) {
      if (!around_.empty()) plan_prefetches(around_.back(), number, end);
      vector_loop(number, low, high, place + 1, end);
      prefetches_.clear();
      return;
    }
    around_.push_back(place);
    counted_loop(number, low, high, 1, [&] { emit_range(place + 1, end); });
    around_.pop_back();
  }

  // ---- what the next row reads and writes is fetched while this one is swept for the last time

  // How far a form moves when the loop `around` moves on by one.
  [[nodiscard]] int64_t step_of(const Affine& index, uint32_t around) const {
    int64_t step = index.stride_of(around);
    for (uint32_t k = 0; k < phase_.variables.size() && step == 0; ++k) {
      const LoopVariable& digit = phase_.variables[k];
      if (digit.kind == LoopVariable::Kind::kDigit && digit.source == around && digit.divisor == 1)
        step = index.stride_of(k);
    }
    return step;
  }

  // The accesses in a row of all sweeps of vector loop `number` in the loop at `around`, if the sweep that ends at
  // `end` is the last of them.
  void plan_prefetches(size_t around, uint32_t number, size_t end) {
    constexpr int64_t kLongestRow = 1 << 15;  // elements
    const uint32_t outer = phase_.instructions[around].loop;
    const size_t stop = end_of(around);
    const auto begins = [](const LoopInstruction& one) { return one.op == LoopOp::kLoop; };
    const auto at = [&](size_t place) { return phase_.instructions.begin() + static_cast<ptrdiff_t>(place); };
    if (extent_of(number) > kLongestRow || std::any_of(at(end), at(stop), begins)) return;
    uint32_t inside = outer;  // no sweep holds a loop that is left before it is
    for (size_t i = around + 1; i < end; ++i) {
      const LoopInstruction& one = phase_.instructions[i];
      if (begins(one)) inside = one.loop;
      const bool is_access = one.op == LoopOp::kStore || (one.op == LoopOp::kLoad && one.args[0] < 0);
      if (!is_access || inside != number || one.index.stride_of(number) != 1 || step_of(one.index, outer) == 0)
        continue;
      const auto kind = program_.buffers[one.buffer].kind;
      if (kind != LoopBuffer::Kind::kInput && kind != LoopBuffer::Kind::kOutput) continue;
      const auto same = [&](const LoopInstruction* other) {
        return other->buffer == one.buffer && other->index == one.index;
      };
      if (std::ranges::none_of(prefetches_, same)) prefetches_.push_back(&one);
    }
  }

  void emit_prefetches(uint32_t outer) {
    constexpr int64_t kLine = 64;
    for (const LoopInstruction* one : prefetches_) {
      const LoopBuffer& buffer = program_.buffers[one->buffer];
      V* next = b_.CreateAdd(at_first_lane(one->index), i64(step_of(one->index, outer)));
      V* place = address(buffer, one->buffer, next);
      for (int64_t byte = 0; byte < lanes_.count() * size_of(buffer.dtype); byte += kLine) {
        V* line = b_.CreateGEP(b_.getInt8Ty(), place, i64(byte));
        V* is_write = b_.getInt32(one->op == LoopOp::kStore ? 1 : 0);
        b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()},
                           {line, is_write, b_.getInt32(3), b_.getInt32(1)});
      }
    }
  }

  // ---- instructions

  void emit_range(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const LoopInstruction& one = phase_.instructions[i];
      switch (one.op) {
        case LoopOp::kLoop: {
          const size_t end = end_of(i);
          emit_loop(i, end);
          i = end;
          break;
        }
        case LoopOp::kAccumulator:
          emit_accumulator(i, one);
          break;
        case LoopOp::kAccumulate:
        case LoopOp::kAccumulateProduct:
          emit_accumulate(one);
          break;
        case LoopOp::kFinish:
          values_[i] = emit_finish(one);
          break;
        case LoopOp::kConstant:
          values_[i] = start_value(one);
          break;
        case LoopOp::kIndex:
          values_[i] = index_vector(one.index);
          break;
        case LoopOp::kLoad:
          values_[i] = emit_load(one);
          break;
        case LoopOp::kStore:
          emit_store(one);
          break;
        default:
          values_[i] = emit_computation(one);
      }
    }
  }

  V* emit_computation(const LoopInstruction& one) {
    std::vector<V*> args;
    bool is_vector = false;
    for (size_t k = 0; k < operand_count(one.op); ++k) {
      args.push_back(values_[static_cast<size_t>(one.args[k])]);
      is_vector = is_vector || LlvmScalar::is_vector(args.back());
    }
    if (is_vector)
      for (V*& arg : args) arg = splat(arg);
    const ValueType from = phase_.instructions[static_cast<size_t>(one.args[0])].type;
    return scalar_.compute(one, from, args);
  }

  static constexpr int kCopies = 4;
  const LoopProgram& program_;
  const LoopPhase& phase_;
  llvm::IRBuilder<> b_;
  LlvmScalar scalar_;
  LlvmLanes lanes_;
  llvm::Function* function_ = nullptr;
  llvm::BasicBlock* entry_ = nullptr;
  std::vector<V*> pointers_;  // by buffer
  V* zero_ = nullptr;         // where a load reads whose condition does not hold
  std::vector<V*> values_;    // by instruction, of the latest turn written
  std::vector<V*> variables_;
  std::vector<Accumulator> accumulators_;  // by instruction
  size_t vector_variable_ = kNone;
  size_t copy_ = 0;
  std::vector<size_t> around_;  // the loops that are open, by instruction
  std::vector<const LoopInstruction*> prefetches_;
};

}  // namespace

std::unique_ptr<llvm::Module> llvm_module(llvm::LLVMContext& context, const LoopProgram& program,
                                          const CpuTarget& target) {
  auto module = std::make_unique<llvm::Module>("kernel", context);
  for (size_t p = 0; p < program.phases.size(); ++p)
    PhaseEmitter(*module, program, program.phases[p], target, phase_name(p)).emit();
  return module;
}

}  // namespace stepc
