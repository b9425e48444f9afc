// ATen calls with prepared arguments, and numbers that pass between calls. Private to runtime/.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "ir/trace.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

class AtenKernel final : public BoundKernel {
 public:
  AtenKernel(const Instruction& instruction, const KernelParts& parts);
  void run(RunState& state) override;
  void supply(size_t arg, const c10::IValue& number) override;

 private:
  struct Argument {
    enum class Kind : uint8_t { kConstant, kOperand, kNumberOf, kList, kOptionalList, kNumbersOf, kRead, kGenerator };
    Kind kind = Kind::kConstant;
    c10::IValue constant;
    c10::TypePtr type;           // kNumberOf: the type that the operator takes
    std::vector<int64_t> reads;  // places among the instruction's reads; -1: an undefined tensor
    ReadNumber number;           // kRead
    size_t generator = 0;
  };
  struct Result {
    size_t position = 0;   // among the call's results
    ssize_t element = -1;  // within a list result
  };

  Argument bind(const Arg& arg, const c10::Argument& argument) const;
  void gather_reads(RunState& state);
  void push(Argument& argument, RunState& state);
  [[nodiscard]] c10::IValue list_of(const Argument& argument) const;

  const Instruction& instruction_;
  c10::OperatorHandle op_;
  std::vector<Argument> arguments_;
  std::vector<Result> results_;
  std::vector<OperandId> fresh_;                     // by result
  std::vector<Shape> sizes_;                         // by result
  std::vector<std::pair<size_t, Shape>> laid_out_;   // reads that are copied to these strides first; none: contiguous
  std::vector<std::pair<size_t, Shape>> restrided_;  // reads with these strides, but in dims of one element
  std::vector<OperandId> targets_;                   // of the call's writes, by aten->writes
  bool leaves_out_ = false;                          // one of its results was undefined when it was recorded
  std::vector<at::Tensor> reads_;                    // of this run
  std::vector<at::Tensor> made_;
};

// Moves the results of a call to their places. The call allocates them in an order of its own, so a result may lie in
// the place of another result, or in its own place in another layout.
void define_results(const std::vector<OperandId>& writes, std::vector<at::Tensor>& made,
                    const std::vector<OperandId>& reads, RunState& state);

// pass_on(): the value of `read` as the kind of number that is passed on. arg_of(): a number of a trace from a value on
// the stack.
c10::IValue pass_on(const ReadNumber& number, const c10::IValue& read);
Arg arg_of(const c10::IValue& number);

}  // namespace stepc
