#include "runtime/bind/bound_aten.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "aten/constants.h"
#include "aten/operators.h"
#include "base/check.h"
#include "runtime/aten_ops/aten_ops.h"
#include "schedule/workspaces.h"

namespace stepc {

namespace {

const c10::TypePtr& without_optional(const c10::TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional == nullptr ? type : optional->getElementType();
}
bool takes_number(const c10::TypePtr& type) {
  switch (without_optional(type)->kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::BoolType:
      return true;
    default:
      return false;
  }
}

c10::IValue number_in(const at::Tensor& tensor, const c10::TypePtr& type) {
  const at::Scalar number = tensor.item();
  switch (without_optional(type)->kind()) {
    case c10::TypeKind::FloatType:
      return number.toDouble();
    case c10::TypeKind::IntType:
      return number.toLong();
    case c10::TypeKind::BoolType:
      return number.toBool();
    default:
      return number;
  }
}

bool overlaps_itself(const at::Tensor& tensor, const Shape& strides) {
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (strides[static_cast<size_t>(d)] == 0 && tensor.size(d) > 1) return true;
  return false;
}

// Strides of dimensions of size 1 do not move elements, but kernels infer a memory format from them.
bool differ_in_single_elements(const TensorLayout& layout, const Shape& strides) {
  bool differ = false;
  for (size_t d = 0; d < strides.size(); ++d) {
    if (layout.strides[d] == strides[d]) continue;
    if (layout.type.shape[d] != 1) return false;
    differ = true;
  }
  return differ;
}

// A recorded layout that overlapped itself, as that of an expanded tensor does, cannot be written to.
at::Tensor in_layout(const at::Tensor& tensor, const Shape& strides) {
  if (strides.empty() || overlaps_itself(tensor, strides)) return tensor.contiguous();
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

// A row of the op table as ATen calls.
class OpKernel final : public BoundKernel {
 public:
  OpKernel(const Instruction& instruction, const KernelParts& parts)
      : instruction_(instruction), op_(instruction.op, parts.device()) {
    for (OperandId write : instruction.writes) {
      const Operand& operand = parts.schedule.operands[write.index()];
      types_.push_back({operand.dtype, operand.sizes});
    }
  }
  void run(RunState& state) override {
    std::vector<at::Tensor> inputs;
    inputs.reserve(instruction_.reads.size());
    for (OperandId read : instruction_.reads) inputs.push_back(state.operands[read]);
    at::Tensor target;
    if (op_.overwrites()) {
      state.operands.make_own(instruction_.writes[0]);
      target = state.operands[instruction_.writes[0]];
    }
    std::vector<at::Tensor> made = op_(inputs, instruction_.attrs, types_, target);
    define_results(instruction_.writes, made, instruction_.reads, state);
  }

 private:
  const Instruction& instruction_;
  AtenOp op_;
  std::vector<TensorType> types_;
};

}  // namespace

void define_results(const std::vector<OperandId>& writes, std::vector<at::Tensor>& made,
                    const std::vector<OperandId>& reads, RunState& state) {
  const auto is_at = [](const at::Tensor& tensor, const at::Tensor& place) {
    return place.defined() && tensor.const_data_ptr() == place.const_data_ptr() && tensor.strides() == place.strides();
  };
  for (size_t r = 0; r < made.size(); ++r) {
    if (!made[r].defined() || is_at(made[r], state.operands[writes[r]])) continue;
    const bool in_the_way = std::ranges::any_of(writes, [&](OperandId write) {
      const at::Tensor& place = state.operands[write];
      return place.defined() && place.numel() > 0 && place.const_data_ptr() == made[r].const_data_ptr();
    });
    if (!in_the_way) continue;
    state.memory.copy_next();  // not to the place that this leaves
    made[r] = made[r].clone();
  }
  for (size_t r = 0; r < made.size(); ++r) state.operands.define(writes[r], made[r], reads);
}

AtenKernel::AtenKernel(const Instruction& instruction, const KernelParts& parts)
    : instruction_(instruction), op_(find_operator(instruction.op)) {
  INTERNAL_CHECK(instruction.aten.has_value(), "{} without its arguments", instruction.op);
  const AtenCall& call = *instruction.aten;
  const auto& schema = op_.schema().arguments();
  USER_CHECK(schema.size() == call.args.size(), "the step calls {} with {} arguments, this LibTorch's takes {}",
             instruction.op, call.args.size(), schema.size());
  for (size_t a = 0; a < schema.size(); ++a) arguments_.push_back(bind(call.args[a], schema[a]));
  const auto add = [&](ValueId id, size_t position, ssize_t element) {
    if (!id.valid()) return;
    results_.push_back({position, element});
    sizes_.push_back(parts.schedule.operands[instruction.writes[id.index()].index()].sizes);
    fresh_.push_back(instruction.writes[id.index()]);
  };
  for (size_t r = 0; r < call.results.size(); ++r) {
    if (const auto* one = std::get_if<ValueId>(&call.results[r])) {
      leaves_out_ = leaves_out_ || !one->valid();
      add(*one, r, -1);
    }
    if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r]))
      for (size_t e = 0; e < list->size(); ++e) add((*list)[e], r, static_cast<ssize_t>(e));
  }
  INTERNAL_CHECK_EQ(instruction.writes.size(), fresh_.size() + call.writes.size(), "what {} writes", instruction.op);
  for (size_t w = 0; w < call.writes.size(); ++w) targets_.push_back(instruction.writes[fresh_.size() + w]);
  if (instruction.call.valid()) return;  // a recorded call finds its operands as it was recorded with them
  const std::vector<TensorLayout> layouts = layouts_of(parts.schedule, instruction.reads);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto recorded = std::ranges::find(call.layouts, i, &std::pair<uint32_t, Shape>::first);
    const bool was_contiguous = recorded == call.layouts.end();
    if (needs_layout(call, i, layouts[i])) {
      laid_out_.emplace_back(i, was_contiguous ? Shape() : recorded->second);
      continue;
    }
    Shape strides = was_contiguous ? contiguous_strides(layouts[i].type.shape) : recorded->second;
    if (differ_in_single_elements(layouts[i], strides)) restrided_.emplace_back(i, std::move(strides));
  }
}

AtenKernel::Argument AtenKernel::bind(const Arg& arg, const c10::Argument& argument) const {
  Argument bound;
  bound.type = argument.type();
  const auto place = [](ValueId id) { return id.valid() ? static_cast<int64_t>(id.index()) : -1; };
  if (const auto* one = std::get_if<ValueId>(&arg)) {
    if (!one->valid()) {
      bound.constant = at::Tensor();
    } else {
      bound.kind = takes_number(bound.type) ? Argument::Kind::kNumberOf : Argument::Kind::kOperand;
      bound.reads = {place(*one)};
    }
  } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
    const c10::TypePtr& of = without_optional(bound.type);
    const c10::TypePtr& element = of->expectRef<c10::ListType>().getElementType();
    bound.kind = element->kind() == c10::TypeKind::OptionalType ? Argument::Kind::kOptionalList
                 : takes_number(element)                        ? Argument::Kind::kNumbersOf
                                                                : Argument::Kind::kList;
    for (ValueId id : *list) bound.reads.push_back(place(id));
  } else if (const auto* number = std::get_if<ReadNumber>(&arg)) {
    bound.kind = Argument::Kind::kRead;
    bound.number = *number;
  } else if (const auto* generator = std::get_if<GeneratorArg>(&arg)) {
    bound.kind = Argument::Kind::kGenerator;
    bound.generator = generator->generator.index();
  } else {
    bound.constant = constant_to_ivalue(arg, argument);
  }
  return bound;
}

void AtenKernel::supply(size_t arg, const c10::IValue& number) {
  arguments_[arg].kind = Argument::Kind::kConstant;
  arguments_[arg].constant = number;
}

// Gathers the call's operands. A written operand is the memory for its new contents.
void AtenKernel::gather_reads(RunState& state) {
  reads_.clear();
  for (OperandId read : instruction_.reads) reads_.push_back(state.operands[read]);
  for (size_t w = 0; w < targets_.size(); ++w) {
    at::Tensor& written = reads_[instruction_.aten->writes[w]];
    if (targets_[w] == instruction_.reads[instruction_.aten->writes[w]]) continue;
    state.operands.make_own(targets_[w]);
    const at::Tensor& target = state.operands[targets_[w]];
    if (target.const_data_ptr() != written.const_data_ptr()) target.copy_(written);
    written = target;
  }
  for (const auto& [read, strides] : restrided_) reads_[read] = reads_[read].as_strided(reads_[read].sizes(), strides);
  for (const auto& [read, strides] : laid_out_) {
    state.memory.copy_next();
    reads_[read] = in_layout(reads_[read], strides);
  }
}

c10::IValue AtenKernel::list_of(const Argument& argument) const {
  if (argument.kind == Argument::Kind::kOptionalList) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(argument.reads.size());
    for (int64_t read : argument.reads)
      list.push_back(read >= 0 ? std::optional(reads_[static_cast<size_t>(read)]) : std::nullopt);
    return list;
  }
  c10::List<at::Tensor> list;
  list.reserve(argument.reads.size());
  for (int64_t read : argument.reads) list.push_back(read >= 0 ? reads_[static_cast<size_t>(read)] : at::Tensor());
  return list;
}

void AtenKernel::push(Argument& argument, RunState& state) {
  torch::jit::Stack& stack = state.stack;
  switch (argument.kind) {
    case Argument::Kind::kConstant:
      stack.push_back(argument.constant);
      return;
    case Argument::Kind::kOperand:
      stack.emplace_back(reads_[static_cast<size_t>(argument.reads[0])]);
      return;
    case Argument::Kind::kNumberOf:
      stack.push_back(number_in(reads_[static_cast<size_t>(argument.reads[0])], argument.type));
      return;
    case Argument::Kind::kNumbersOf: {
      c10::List<double> list;
      for (int64_t read : argument.reads) list.push_back(reads_[static_cast<size_t>(read)].item<double>());
      stack.emplace_back(std::move(list));
      return;
    }
    case Argument::Kind::kRead:
      stack.push_back(pass_on(argument.number, state.numbers[argument.number.read.index()]));
      return;
    case Argument::Kind::kGenerator:
      stack.emplace_back(state.generators[argument.generator]);
      return;
    case Argument::Kind::kList:
    case Argument::Kind::kOptionalList:
      stack.push_back(list_of(argument));
      return;
  }
}

void AtenKernel::run(RunState& state) {
  gather_reads(state);
  state.stack.clear();
  for (Argument& argument : arguments_) push(argument, state);
  {
    // Kernels with two forms (oneDNN's recurrent layers) ask whether gradients are recorded; without it they leave out
    // results that only a backward pass needs.
    const c10::AutoGradMode mode(!leaves_out_);
    op_.callBoxed(&state.stack);
  }
  if (instruction_.number) state.numbers[*instruction_.number] = state.stack.front();
  made_.clear();
  for (const Result& result : results_) {
    const c10::IValue& value = state.stack[result.position];
    made_.push_back(result.element < 0 ? value.toTensor()
                                       : value.toTensorVector()[static_cast<size_t>(result.element)]);
  }
  reads_.clear();
  state.stack.clear();
  // The size of such a result is the number that the host reads. It may differ now: then the guard behind the call
  // turns the run back, and no operand has room for the result.
  const auto has_its_size = [&](size_t r) { return made_[r].sizes() == c10::IntArrayRef(sizes_[r]); };
  bool all_fit = true;
  for (size_t r = 0; r < made_.size(); ++r) all_fit = all_fit && (!made_[r].defined() || has_its_size(r));
  USER_CHECK(all_fit || instruction_.number, "{} makes a tensor of another size than while it was recorded",
             instruction_.op);
  if (all_fit) define_results(fresh_, made_, instruction_.reads, state);
  made_.clear();
}

std::unique_ptr<BoundKernel> bind_op(const Instruction& instruction, const KernelParts& parts) {
  return std::make_unique<OpKernel>(instruction, parts);
}
std::unique_ptr<BoundKernel> bind_aten(const Instruction& instruction, const KernelParts& parts) {
  return std::make_unique<AtenKernel>(instruction, parts);
}

c10::IValue pass_on(const ReadNumber& number, const c10::IValue& read) {
  const c10::Scalar scalar = read.isBool() ? c10::Scalar(read.toBool()) : read.toScalar();
  WrappedNumber out;
  switch (number.kind) {
    case ReadNumber::Kind::kBool:
      out.number = scalar.toBool();
      break;
    case ReadNumber::Kind::kInt:
      out.number = scalar.toLong();
      break;
    case ReadNumber::Kind::kDouble:
      out.number = scalar.toDouble();
      break;
  }
  if (number.wrapped) return tensor_of(out);
  if (number.kind == ReadNumber::Kind::kBool) return std::get<bool>(out.number);
  if (number.kind == ReadNumber::Kind::kInt) return std::get<int64_t>(out.number);
  return std::get<double>(out.number);
}

Arg arg_of(const c10::IValue& number) {
  if (number.isTensor()) return number.toTensor().numel();
  if (number.isBool()) return number.toBool();
  if (number.isInt()) return number.toInt();
  return number.toDouble();
}

}  // namespace stepc
