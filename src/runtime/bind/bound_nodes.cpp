// Nodes as ATen calls, on a chunk of the elements at a time (kernels/node_calls.h).
#include <algorithm>

#include <ATen/Functions.h>

#include "kernels/node_calls.h"
#include "ops/op_def.h"
#include "runtime/aten_ops/aten_ops.h"
#include "runtime/bind/bound_kernel.h"

namespace stepc {

namespace {

class NodeCalls final : public BoundKernel {
 public:
  NodeCalls(const Instruction& instruction, const Graph& nodes, const c10::Device& device)
      : nodes_(nodes),
        device_(device),
        reads_(instruction.reads),
        writes_(instruction.writes),
        dead_after_(dead_after(nodes)),
        parts_(nodes.outputs.size()) {
    for (const Node& node : nodes.nodes) calls_.emplace_back(node.op, device);
    for (const GraphTensor& tensor : nodes.tensors) count_ = std::max(count_, element_count(tensor.type.shape));
  }

  void run(RunState& state) override {
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) run_chunk(state, chunk);
  }
  [[nodiscard]] int64_t chunks() const override { return (count_ + kElementsOfChunk - 1) / kElementsOfChunk; }
  [[nodiscard]] Elements made_by(int64_t chunk, size_t write) const override {
    if (is_single(nodes_.outputs[write].tensor)) return {};
    return {chunk * kElementsOfChunk, std::min(count_, (chunk + 1) * kElementsOfChunk)};
  }

  void run_chunk(RunState& state, int64_t chunk) override {
    const int64_t begin = chunk * kElementsOfChunk;
    const int64_t count = std::min(count_ - begin, kElementsOfChunk);
    const auto window = [&](const at::Tensor& whole, TensorId tensor) {
      return is_single(tensor) ? whole.view(at::IntArrayRef()) : whole.view({-1}).narrow(0, begin, count);
    };
    std::vector<at::Tensor> values(nodes_.tensors.size());
    for (size_t r = 0; r < reads_.size(); ++r) {
      const TensorId input = nodes_.inputs[r].tensor;
      values[input.index()] = window(state.operands[reads_[r]], input);
    }
    std::vector<at::Tensor> inputs;
    for (size_t n = 0; n < calls_.size(); ++n) {
      const Node& node = nodes_.nodes[n];
      inputs.clear();
      for (TensorId input : node.inputs) inputs.push_back(values[input.index()]);
      TensorType type = nodes_.type(node.outputs[0]);
      if (!type.shape.empty()) type.shape[0] = count;
      values[node.outputs[0].index()] = calls_[n](inputs, node.attrs, {type}).front();
      inputs.clear();
      for (TensorId dead : dead_after_[n]) values[dead.index()].reset();
    }
    for (size_t w = 0; w < writes_.size(); ++w) {
      const TensorId output = nodes_.outputs[w].tensor;
      at::Tensor& made = values[output.index()];
      const Node* maker = nodes_.producer(output);
      const bool is_part = maker != nullptr && op_def(maker->op).has(Trait::kReduction);
      if (is_part) made = reduced(w, *maker, made, chunk);
      if (made.defined()) window(state.operands[writes_[w]], output).copy_(made);
    }
  }

 private:
  [[nodiscard]] bool is_single(TensorId tensor) const { return nodes_.shape(tensor).empty(); }

  // Returns an undefined tensor until the last part has been added.
  at::Tensor reduced(size_t write, const Node& node, const at::Tensor& part, int64_t chunk) {
    std::vector<at::Tensor>& parts = parts_[write];
    if (chunks() == 1) return part;
    if (chunk == 0) parts.clear();
    parts.push_back(part);
    if (chunk + 1 < chunks()) return {};
    const at::Tensor all = at::stack(parts);
    parts.clear();
    return AtenOp(node.op, device_)({all}, node.attrs, {nodes_.type(node.outputs[0])}).front();
  }

  const Graph& nodes_;
  const c10::Device device_;
  std::vector<OperandId> reads_, writes_;
  std::vector<AtenOp> calls_;
  std::vector<std::vector<TensorId>> dead_after_;  // by node
  std::vector<std::vector<at::Tensor>> parts_;     // of a reduction, by output
  int64_t count_ = 1;
};

}  // namespace

std::unique_ptr<BoundKernel> bind_nodes(const Instruction& instruction, const KernelParts& parts) {
  return std::make_unique<NodeCalls>(instruction, parts.schedule.nodes[*instruction.nodes], parts.device());
}

}  // namespace stepc
