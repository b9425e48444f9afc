#include "loops/group_key.h"

#include <type_traits>
#include <utility>
#include <vector>

namespace stepc {

namespace {

class GroupKey {
 public:
  explicit GroupKey(const Graph& group) {
    for (const GraphTensor& tensor : group.tensors) {
      add(tensor.type.dtype);
      add(tensor.type.shape);
    }
    for (const Node& node : group.nodes) {
      add(node.op);
      add(node.inputs);
      add(node.outputs);
      add(to_text(node.attrs));
    }
    for (const GraphInput& input : group.inputs) {
      add(input.tensor);
      add(input.strides);
      add(input.offset);
    }
    for (const GraphOutput& output : group.outputs) {
      add(output.tensor);
      add(output.strides);
    }
  }
  std::string take() { return std::move(key_); }

 private:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& value) { key_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(const std::string& text) {
    add(text.size());
    key_ += text;
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }
  std::string key_;
};

}  // namespace

std::string group_key(const Graph& group) { return GroupKey(group).take(); }

}  // namespace stepc
