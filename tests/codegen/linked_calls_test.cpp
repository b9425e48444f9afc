// What LLVM makes of elementary functions links, whatever operands are constants: a compiler that knows a function by
// its name may call another one in its place.
#include <array>

#include <gtest/gtest.h>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {
namespace {

constexpr double kConstants[] = {0, 1, 2, 0.5, -1, 10};

// Whether the op takes operands of these types.
bool takes(const OpDef& op, const std::vector<TensorType>& types, const Attrs& attrs) {
  try {
    infer_types(op, {types, complete_attrs(op, attrs)});
    return true;
  } catch (const InternalError&) {
    return false;
  }
}

// Every scalar body on `dtype`: on tensors, and with each operand in turn as each of the constants.
class ConstantForms {
 public:
  explicit ConstantForms(DType dtype) : dtype_(dtype) {}

  // A kernel an op, and one of all ops on the same operands.
  std::vector<Graph> groups() {
    std::vector<Graph> out;
    for (const OpFamily& family : op_families())
      for (const OpDef& op : family.ops) {
        if (op.body == nullptr) continue;
        begin();
        add_forms(op);
        if (!b_.graph().outputs.empty()) out.push_back(decompose(b_.take()));
      }
    begin();
    for (const OpFamily& family : op_families())
      for (const OpDef& op : family.ops)
        if (op.body != nullptr) add(op, inputs_of(op));
    out.push_back(decompose(b_.take()));
    return out;
  }

 private:
  void begin() {
    b_ = GraphBuilder();
    for (TensorId& id : tensors_) id = group_input(b_, dtype_, {5});
    condition_ = group_input(b_, DType::kBool, {5});
  }
  std::vector<TensorId> inputs_of(const OpDef& op) const {
    std::vector<TensorId> inputs(tensors_.begin(), tensors_.begin() + static_cast<ptrdiff_t>(op.min_inputs));
    if (op.min_inputs == 3) inputs[0] = condition_;
    return inputs;
  }
  void add_forms(const OpDef& op) {
    const std::vector<TensorId> inputs = inputs_of(op);
    add(op, inputs);
    for (size_t k = 0; k < inputs.size(); ++k)
      for (double value : kConstants) {
        std::vector<TensorId> some = inputs;
        some[k] = b_.full(value, b_.dtype(inputs[k]), {5});
        add(op, some);
      }
  }
  void add(const OpDef& op, const std::vector<TensorId>& inputs) {
    std::vector<TensorType> types;
    for (TensorId id : inputs) types.push_back(b_.graph().type(id));
    Attrs attrs;
    for (const AttrDef& attr : op.attrs)
      if (attr.kind == AttrKind::kDType && !attr.otherwise) attrs.set(std::string(attr.name), DType::kF32);
    if (!takes(op, types, attrs)) return;
    const TensorId made = b_.add(op.name, inputs, attrs);
    group_output(b_, b_.add("where", {condition_, made, made}));  // what is made of constants alone has no loops
  }

  DType dtype_;
  GraphBuilder b_;
  std::array<TensorId, 3> tensors_;
  TensorId condition_;
};

TEST(LinkedCalls, EveryConstantFormOfEveryBodyIsAKernel) {
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (DType dtype : {DType::kF32, DType::kF64, DType::kI64})
      for (const Graph& group : ConstantForms(dtype).groups()) {
        ASSERT_EQ(why_not(group), "") << to_text(group);
        ASSERT_NO_THROW(compiler.compile(lower(group))) << to_text(group);
      }
    EXPECT_GT(compiler.statistics().compiled, 100U);
  }
}

}  // namespace
}  // namespace stepc
