#include "passes/from_trace/storage_contents.h"

#include "base/check.h"

namespace stepc {

namespace {

// A lazy conjugate or negative, made real: its own inverse, so it serves reading and writing.
TensorId without_bits(GraphBuilder& b, const Value& value, TensorId tensor) {
  if (value.neg) tensor = b.add("neg", {tensor});
  if (value.conj && is_complex(value.dtype)) {
    Node node;
    node.op = "aten::conj_physical";
    node.inputs = {tensor};
    node.aten.emplace();
    node.aten->args = node.aten->results = {ValueId(0)};
    tensor = b.add_aten(std::move(node), {b.type(tensor)})[0];
  }
  return tensor;
}

Window flat(int64_t count) { return {{count}, {1}, 0}; }

}  // namespace

Window window_of(const Value& value) { return {value.sizes, value.strides, value.offset}; }

StorageContents::StorageContents(const Trace& trace, GraphBuilder& builder)
    : trace_(trace), builder_(builder), states_(trace.storages.size()), windows_(trace.storages.size()) {
  for (size_t v = 0; v < trace.values.size(); ++v) windows_[trace.values[v].storage.index()].emplace_back(v);
}

StorageContents::Base StorageContents::base_for(ValueId first) const {
  const Value& value = trace_.values[first.index()];
  const int64_t size = size_of(value.dtype);
  const Window window = window_of(value);
  const Window dense_end = {{element_count(value.sizes)}, {1}, value.offset};
  bool all_inside = true;
  bool all_same = true;
  for (ValueId other : windows_[value.storage.index()]) {
    const Value& o = trace_.values[other.index()];
    all_same = all_same && window_of(o) == window && o.dtype == value.dtype;
    if (element_count(o.sizes) == 0) continue;
    const int64_t other_size = size_of(o.dtype);
    all_inside = all_inside && o.offset * other_size >= dense_end.offset * size &&
                 extent_of(o) * other_size <= (dense_end.offset + dense_end.sizes[0]) * size;
  }
  if (all_same || (is_dense(window) && all_inside)) return {value.dtype, window};
  return {value.dtype, flat(static_cast<int64_t>(trace_.storages[value.storage.index()].bytes) / size)};
}

void StorageContents::introduce(StorageId storage, const Base& base, TensorId tensor) {
  states_[storage.index()] = {base, tensor, {}};
}

void StorageContents::introduce(ValueId value, TensorId tensor) {
  const Value& v = trace_.values[value.index()];
  const Base base = base_for(value);
  if (base.window == window_of(v)) {
    introduce(v.storage, base, without_bits(builder_, v, tensor));
    return;
  }
  introduce(v.storage, base, builder_.full(0, base.dtype, base.window.sizes));
  write(value, tensor);
}

// Two dtypes on one memory: it is kept flat, as the dtype asked for last.
void StorageContents::keep_as(State& state, DType dtype) {
  if (state.base.dtype == dtype) return;
  const Window& window = state.base.window;
  INTERNAL_CHECK(is_dense(window), "memory with gaps is seen as two dtypes");
  const Window before = {{element_count(window.sizes)}, {1}, window.offset};
  const TensorId bytes = view_of(builder_, state.tensor, window, before);
  const int64_t from = size_of(state.base.dtype);
  const int64_t to = size_of(dtype);
  state.tensor = builder_.add("bitcast", {bytes}, {{"dtype", dtype}});
  state.base = {dtype, {builder_.shape(state.tensor), {1}, before.offset * from / to}};
  state.derived.clear();
}

TensorId StorageContents::read(ValueId value) {
  const Value& v = trace_.values[value.index()];
  State& state = states_[v.storage.index()];
  INTERNAL_CHECK(state.tensor.valid(), "%{} is read before its storage holds anything", value);
  if (const auto found = state.derived.find(value); found != state.derived.end()) return found->second;
  keep_as(state, v.dtype);
  const TensorId tensor = without_bits(builder_, v, view_of(builder_, state.tensor, state.base.window, window_of(v)));
  state.derived[value] = tensor;
  return tensor;
}

TensorId StorageContents::read(StorageId storage, const Base& base) {
  State& state = states_[storage.index()];
  keep_as(state, base.dtype);
  return view_of(builder_, state.tensor, state.base.window, base.window);
}

void StorageContents::write(ValueId value, TensorId tensor) {
  const Value& v = trace_.values[value.index()];
  State& state = states_[v.storage.index()];
  INTERNAL_CHECK(state.tensor.valid(), "%{} is written before its storage holds anything", value);
  const TensorId plain = without_bits(builder_, v, tensor);
  keep_as(state, v.dtype);
  const Window window = window_of(v);
  if (window == state.base.window || (is_dense(state.base.window) && covers(state.base.window, window))) {
    state.base.window = window;  // nothing of the old contents is left: keep the new ones as they come
    state.tensor = plain;
  } else {
    state.tensor = write_view(builder_, state.tensor, state.base.window, window, plain);
  }
  state.derived.clear();
  state.derived[value] = tensor;
}

}  // namespace stepc
