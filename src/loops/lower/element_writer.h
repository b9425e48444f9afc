// ElementWriter: writes what one element of a group's tensor is, following indices from results to operands down to
// what is read from memory. Every value is written once a level; what a reduction or an earlier phase made is told to
// it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "loops/lower/loop_space.h"
#include "loops/lower/moved_index.h"
#include "loops/lower/phase_writer.h"
#include "ops/op_def.h"

namespace stepc {

class ElementWriter {
 public:
  using Value = PhaseWriter::Value;

  ElementWriter(const Graph& group, const LoopSpace& space, PhaseWriter& writer)
      : group_(group), space_(space), w_(writer) {}

  // The element of `tensor` at `map`; NoLoops where there is none to be had. Guards: where it is used at all.
  Value element(TensorId tensor, const IndexMap& map, const std::vector<IndexGuard>& guards = {});
  // From now on elements of `tensor`, a reduction's, are `value` where they are asked for at the space's own index.
  void set(TensorId tensor, Value value) { made_[tensor] = value; }
  // A new sweep: what was written in the last one is out of reach, but for what is worth keeping.
  void forget_sweep();
  // Elements that take long to compute are kept from one sweep to the next, in a buffer that `make` gives for a type;
  // `column` is an element's place in its row.
  void keep_costly(Affine column, std::function<std::optional<uint32_t>(DType)> make);

 private:
  Value written(TensorId tensor, const IndexMap& map, const std::vector<IndexGuard>& guards);
  Value read_input(TensorId tensor, const Affine& position, Value indirect, int64_t stride,
                   const std::vector<IndexGuard>& guards);
  Value condition(const std::vector<IndexGuard>& guards);
  Value elementwise(const Node& node, const OpDef& op, const IndexMap& map, const std::vector<IndexGuard>& guards);
  Value moved(const Node& node, const IndexMap& map, const std::vector<IndexGuard>& guards);
  Value reduced(const Node& node, const IndexMap& map, const std::vector<IndexGuard>& guards);
  Value made_from_attributes(const Node& node, const IndexMap& map);
  Value drawn(const Node& node, const IndexMap& map);
  Value selected(const Node& node, const IndexMap& map, const std::vector<IndexGuard>& guards);
  Value zero_of(DType dtype);
  Value number(const AttrValue& value, DType dtype);

  const Graph& group_;
  const LoopSpace& space_;
  PhaseWriter& w_;
  std::map<TensorId, Value> made_;
  using Key = std::tuple<TensorId, IndexMap, std::vector<IndexGuard>>;
  std::map<Key, Value> known_, known_in_sweep_;

  struct Kept {
    size_t sweep = 0;
    Value value = PhaseWriter::kNone;
    std::optional<uint32_t> buffer;  // once it is read again
  };
  Value kept(const Key& key);
  std::map<Key, Kept> costly_;
  Affine column_;
  std::function<std::optional<uint32_t>(DType)> make_buffer_;
};

// The buffer of a group input is its number.
Shape strides_of(const Graph& group, const GraphInput& input);
Shape strides_of(const Graph& group, const GraphOutput& output);

// The neutral element of a reduction of `dtype`, as a real or an integer; how its values are combined. NoLoops for an
// op that is none of those.
struct Fold {
  Combine combine = Combine::kSum;
  double real = 0;
  int64_t integer = 0;
};
Fold fold_of(const Node& node, DType dtype);

}  // namespace stepc
