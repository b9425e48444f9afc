// Lanes are explicit: what moves with the vector loop's variable is an LLVM vector, the rest a scalar. A vector loop
// runs whole vectors first, a few at a time where it accumulates, and then once under a mask, so that an element's bits
// do not depend on where it stands; lanes and copies of an accumulator are combined in a fixed order.
#include "codegen/llvm_module.h"

#include <bit>
#include <functional>
#include <optional>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicInst.h>

#include "base/check.h"
#include "codegen/llvm_lanes.h"
#include "codegen/llvm_memory.h"
#include "codegen/llvm_scalar.h"
#include "codegen/prefetch.h"

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
        lanes_(made_lanes(target)),
        function_(made_function(module, target, name)),
        entry_(first_block()),
        memory_(program, phase, b_, *function_, scalar_, lanes_),
        values_(phase.instructions.size()),
        accumulators_(phase.instructions.size()) {}

  void emit() {
    auto* body = llvm::BasicBlock::Create(b_.getContext(), "body", function_);
    b_.SetInsertPoint(body);
    emit_range(0, phase_.instructions.size());
    b_.CreateRetVoid();
    b_.SetInsertPoint(entry_);
    b_.CreateBr(body);
  }

 private:
  using V = llvm::Value;

  llvm::Function* made_function(llvm::Module& module, const CpuTarget& target, const std::string& name) {
    llvm::Type* pointer = b_.getPtrTy();
    llvm::Type* number = b_.getInt64Ty();
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, number, number, pointer}, false);
    auto* function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    function->addFnAttr("target-cpu", target.name);
    function->addFnAttr("target-features", target.features);
    function->addFnAttr("prefer-vector-width", std::to_string(target.vector_bits));
    return function;
  }
  llvm::BasicBlock* first_block() {
    auto* block = llvm::BasicBlock::Create(b_.getContext(), "entry", function_);
    b_.SetInsertPoint(block);
    return block;
  }
  V* i64(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }

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
    const bool in_pairs = gain > 0;
    return {b_, scalar_, in_pairs ? 2 * in_a_register : in_a_register, in_pairs};
  }

  // A store rounds: what was just rounded to the same type need not be.
  [[nodiscard]] size_t unrounded(int32_t value, DType dtype) const {
    const LoopInstruction& made = phase_.instructions[static_cast<size_t>(value)];
    if (made.op != LoopOp::kRoundTo || made.dtype != dtype) return static_cast<size_t>(value);
    const bool is_same = phase_.instructions[static_cast<size_t>(made.args[0])].type == made.type;
    return static_cast<size_t>(is_same ? made.args[0] : value);
  }

  void emit_store(const LoopInstruction& one) {
    memory_.store(one, values_[unrounded(one.args[0], program_.buffers[one.buffer].dtype)]);
  }
  V* emit_load(const LoopInstruction& one) {
    const auto argument = [&](size_t k) {
      return one.args[k] < 0 ? nullptr : values_[static_cast<size_t>(one.args[k])];
    };
    return memory_.load(one, argument(0), argument(1));
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
    made.across_lanes = !memory_.in_vector() && gathers_lanes(place);
    const bool is_vector = memory_.in_vector() || made.across_lanes;
    V* start = start_value(one);
    if (is_vector) start = lanes_.splat(start);
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
    const size_t copy = accumulator.across_lanes && memory_.in_vector() ? copy_ : 0;
    llvm::AllocaInst* slot = accumulator.copies[copy];
    V* old = b_.CreateLoad(slot->getAllocatedType(), slot);
    const auto argument = [&](size_t k) {
      V* value = values_[static_cast<size_t>(one.args[k])];
      return LlvmScalar::is_vector(old) ? lanes_.splat(value) : value;
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

  std::pair<V*, V*> bounds_of(uint32_t number) {
    const LoopVariable& variable = phase_.variables[number];
    switch (variable.kind) {
      case LoopVariable::Kind::kItem:
        return {function_->getArg(1), function_->getArg(2)};
      case LoopVariable::Kind::kChunk: {
        V* low = b_.CreateMul(memory_.variable(0), i64(variable.block));
        V* high = b_.CreateAdd(low, i64(variable.block));
        return {low, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, i64(variable.extent))};
      }
      default:
        return {i64(0), i64(variable.extent)};
    }
  }

  // for (variable = low; variable < high; variable += step) body()
  void counted_loop(uint32_t number, V* low, V* high, int64_t step, const std::function<void()>& body) {
    V* any = b_.CreateICmpSLT(low, high);
    if (const auto* known = llvm::dyn_cast<llvm::ConstantInt>(any); known != nullptr && known->isZero()) return;
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* turn = llvm::BasicBlock::Create(b_.getContext(), "turn", function_);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", function_);
    b_.CreateCondBr(any, turn, after);
    b_.SetInsertPoint(turn);
    llvm::PHINode* variable = b_.CreatePHI(b_.getInt64Ty(), 2);
    variable->addIncoming(low, before);
    memory_.set_variable(number, variable);
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

  void vector_loop(size_t place, V* low, V* high, size_t end) {
    const uint32_t number = phase_.instructions[place].loop;
    memory_.set_vector_variable(number);
    const auto row = around_.empty() ? std::nullopt : std::optional(around_.back());
    const std::vector<Prefetch> prefetches = prefetches_of(program_, phase_, row, place);
    const int64_t width = lanes_.count();
    const int copies = copies_of(place + 1, end);
    V* turns = b_.CreateSDiv(b_.CreateSub(high, low), i64(copies * width));
    V* stop = b_.CreateAdd(low, b_.CreateMul(turns, i64(copies * width)));
    counted_loop(number, low, stop, copies * width, [&] {
      V* base = memory_.variable(number);
      for (int copy = 0; copy < copies; ++copy) {
        copy_ = static_cast<size_t>(copy);
        if (copy > 0) memory_.set_variable(number, b_.CreateAdd(base, i64(copy * width)));
        for (const Prefetch& one : prefetches) memory_.prefetch(phase_.instructions[one.access], one.step);
        emit_range(place + 1, end);
      }
      copy_ = 0;
    });
    // The rest, the last of it fewer lanes than a vector has.
    counted_loop(number, stop, high, width, [&] {
      lanes_.limit(b_.CreateSub(high, memory_.variable(number)));
      emit_range(place + 1, end);
      lanes_.unlimited();
    });
    memory_.set_vector_variable(std::nullopt);
  }

  void emit_loop(size_t place, size_t end) {
    const uint32_t number = phase_.instructions[place].loop;
    const auto [low, high] = bounds_of(number);
    if (phase_.variables[number].vector) return vector_loop(place, low, high, end);
    around_.push_back(place);
    counted_loop(number, low, high, 1, [&] { emit_range(place + 1, end); });
    around_.pop_back();
  }

  // ---- instructions

  void emit_range(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const LoopInstruction& one = phase_.instructions[i];
      switch (one.op) {
        case LoopOp::kLoop: {
          const size_t end = end_of_loop(phase_, i);
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
          values_[i] = memory_.index(one.index);
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
      for (V*& arg : args) arg = lanes_.splat(arg);
    const ValueType from = phase_.instructions[static_cast<size_t>(one.args[0])].type;
    return scalar_.compute(one, from, args);
  }

  static constexpr int kCopies = 4;
  const LoopProgram& program_;
  const LoopPhase& phase_;
  llvm::IRBuilder<> b_;
  LlvmScalar scalar_;
  LlvmLanes lanes_;
  llvm::Function* function_;
  llvm::BasicBlock* entry_;
  LlvmMemory memory_;
  std::vector<V*> values_;                 // by instruction, of the latest turn written
  std::vector<Accumulator> accumulators_;  // by instruction
  std::vector<size_t> around_;             // the loops without lanes that are open, by instruction
  size_t copy_ = 0;
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
