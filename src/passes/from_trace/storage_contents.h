// StorageContents: the present contents of every storage of a Trace, as graph tensors, while the Trace becomes a Graph.
// Reads derive a window from them with view ops; a write makes a new tensor and drops the windows derived before.
#pragma once

#include <map>
#include <vector>

#include "ir/trace.h"
#include "passes/from_trace/windows.h"

namespace stepc {

class StorageContents {
 public:
  StorageContents(const Trace& trace, GraphBuilder& builder);

  // The window by which a storage that `first` introduces is kept: `first` itself if every other window of the step
  // lies inside it, otherwise the whole storage, flat.
  struct Base {
    DType dtype = DType::kF32;
    Window window;
  };
  [[nodiscard]] Base base_for(ValueId first) const;

  [[nodiscard]] bool known(StorageId storage) const { return states_[storage.index()].tensor.valid(); }
  // A storage's first contents: `tensor` holds `base`.
  void introduce(StorageId storage, const Base& base, TensorId tensor);
  // The same for a tensor that a call made as `value`.
  void introduce(ValueId value, TensorId tensor);

  TensorId read(ValueId value);
  // The present contents of `base`.
  TensorId read(StorageId storage, const Base& base);
  void write(ValueId value, TensorId tensor);

 private:
  struct State {
    Base base;
    TensorId tensor;                      // the contents of base
    std::map<ValueId, TensorId> derived;  // windows of this tensor, already made
  };
  void keep_as(State& state, DType dtype);

  const Trace& trace_;
  GraphBuilder& builder_;
  std::vector<State> states_;
  std::vector<std::vector<ValueId>> windows_;  // every value of each storage
};

Window window_of(const Value& value);

}  // namespace stepc
