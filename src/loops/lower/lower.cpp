#include "loops/lower/lower.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "loops/group_key.h"
#include "loops/lower/element_writer.h"
#include "loops/lower/group_parts.h"
#include "loops/lower/in_place.h"
#include "loops/lower/reductions.h"

namespace stepc {

namespace {

using LoopValue = PhaseWriter::Value;

// From the first element to the last.
int64_t span_of(const Shape& shape, const Shape& strides) {
  if (element_count(shape) == 0) return 0;
  int64_t count = 1;
  for (size_t d = 0; d < shape.size(); ++d) count += (shape[d] - 1) * strides[d];
  return count;
}

class Lowering {
 public:
  // `only_check`: what run() gives is of no use, but it throws as it would.
  Lowering(const Graph& group, const LoopFactors& factors, Together together, const LoopLimits& limits, bool only_check)
      : group_(group),
        space_(find_loop_space(group, factors, together)),
        limits_(limits),
        only_check_(only_check),
        reductions_(reductions_of(group, space_)) {
    reductions_.form.most_chunks = limits.chunks;
  }

  LoopProgram run() {
    make_buffers();
    write_main();
    write_shares();
    write_rest();
    if (only_check_) return {};
    if (program_.phases.empty()) write_nothing();
    program_.in_place = in_place_pairs(program_, limits_.earlier_sweeps);
    return std::move(program_);
  }

 private:
  [[nodiscard]] TensorId operand_of(const Reduction& one) const { return one.node->inputs[0]; }
  [[nodiscard]] TensorId result_of(const Reduction& one) const { return one.node->outputs[0]; }
  [[nodiscard]] const IndexMap& map_of(TensorId id) const { return space_.map_of(id); }

  void make_buffers() {
    for (const GraphInput& input : group_.inputs) {
      const TensorType& type = group_.type(input.tensor);
      int64_t count = span_of(type.shape, strides_of(group_, input));
      if (count > 0) count += input.offset;
      program_.buffers.push_back({LoopBuffer::Kind::kInput, type.dtype, count, 0});
    }
    for (const GraphOutput& output : group_.outputs) {
      const TensorType& type = group_.type(output.tensor);
      program_.buffers.push_back(
          {LoopBuffer::Kind::kOutput, type.dtype, span_of(type.shape, strides_of(group_, output)), 0});
    }
  }

  [[nodiscard]] uint32_t output_buffer(size_t place) const {
    return static_cast<uint32_t>(group_.inputs.size() + place);
  }
  void store_output(PhaseWriter& w, Level level, size_t place, LoopValue value) {
    const TensorId id = group_.outputs[place].tensor;
    w.store(level, output_buffer(place), position_of(map_of(id), strides_of(group_, group_.outputs[place]), 0), value);
  }

  // Outputs that the main phase stores: one element for every row, or for every element of a row.
  void sort_outputs() {
    for (size_t place = 0; place < group_.outputs.size(); ++place) {
      const TensorId id = group_.outputs[place].tensor;
      if (element_count(group_.shape(id)) == 0) continue;
      if (reductions_.is_final[id.index()]) {
        final_outputs_.push_back(place);
        continue;
      }
      const Loops loops = loops_of(map_of(id));
      const Loops in_columns = without(loops, reductions_.form.rows);
      const bool once =
          reductions_.form.rows.empty() && reductions_.form.kind != PhaseForm::Kind::kRows;  // an item is no row
      const bool main = includes(loops, reductions_.form.rows) &&
                        (in_columns == reductions_.form.columns || (in_columns.empty() && !once));
      if (main && !reductions_.all.empty())
        (in_columns.empty() ? row_outputs_ : element_outputs_).push_back(place);
      else
        other_outputs_.push_back(place);
    }
  }

  // Writes a phase twice: first to see which loops always move together, then with those as one.
  template <class F>
  void add_phase(const PhaseForm& form, F&& write) {
    std::vector<bool> merged(space_.extents.size(), false);
    for (bool last : {false, true}) {
      PhaseWriter w(form, space_.extents, merged);
      ElementWriter elements(group_, space_, w);
      write(w, elements);
      if (only_check_) return;
      if (last) program_.phases.push_back(w.take());
      merged = w.mergeable();
    }
  }

  void write_main() {
    sort_outputs();
    if (reductions_.all.empty()) return;
    for (Reduction& one : reductions_.all) {
      if (!one.across) continue;
      one.shares = static_cast<uint32_t>(program_.buffers.size());
      program_.buffers.push_back({LoopBuffer::Kind::kScratch, stored_type(share_type(one)), 0, 0});
    }
    flatten_chunks();
    add_phase(reductions_.form, [&](PhaseWriter& w, ElementWriter& elements) { write_rows(w, elements); });
    if (only_check_) return;
    items_ = program_.phases.back().items;
    for (Reduction& one : reductions_.all) {
      if (!one.across) continue;
      LoopBuffer& buffer = program_.buffers[one.shares];
      buffer.count = items_ * kept_size(one);
      buffer.scratch_byte = program_.scratch_bytes;
      program_.scratch_bytes += (buffer.count * size_of(buffer.dtype) + 63) / 64 * 64;
    }
  }

  // One number from everything: a share is a piece of one long loop where the loops merge into one, else some rows.
  void flatten_chunks() {
    if (reductions_.form.kind != PhaseForm::Kind::kFlatChunks) return;
    PhaseForm flat = reductions_.form;
    flat.kind = PhaseForm::Kind::kRows;
    PhaseWriter w(flat, space_.extents, std::vector<bool>(space_.extents.size(), false));
    ElementWriter elements(group_, space_, w);
    w.begin_sweep();
    for (const Reduction& one : reductions_.all) elements.element(operand_of(one), map_of(operand_of(one)));
    for (size_t place : element_outputs_)
      store_output(w, Level::kSweep, place,
                   elements.element(group_.outputs[place].tensor, map_of(group_.outputs[place].tensor)));
    const std::vector<bool> merged = w.mergeable();
    const Loops all = reductions_.form.columns;
    size_t first = all.size() - 1;
    while (first > 0 && merged[all[first]]) --first;
    if (first == 0) return;
    const auto cut = all.begin() + static_cast<ptrdiff_t>(first);
    reductions_.form = {PhaseForm::Kind::kChunks, {all.begin(), cut}, {cut, all.end()}, limits_.chunks};
  }

  [[nodiscard]] ValueType share_type(const Reduction& one) const {
    return value_type_of(group_.type(operand_of(one)).dtype);
  }
  [[nodiscard]] Loops kept_loops(const Reduction& one) const { return without(one.operand, one.dropped); }
  [[nodiscard]] int64_t kept_size(const Reduction& one) const {
    int64_t size = 1;
    for (uint32_t loop : kept_loops(one)) size *= space_.extents[loop];
    return size;
  }
  // Where the shares of one item begin and which of them belongs to a point of the columns.
  [[nodiscard]] Affine share_position(const Reduction& one, const Affine& item) const {
    Affine position;
    int64_t stride = 1;
    const Loops kept = kept_loops(one);
    for (size_t i = kept.size(); i-- > 0;) {
      position = position + Affine::of(kept[i], stride);
      stride *= space_.extents[kept[i]];
    }
    return position + item * stride;
  }

  LoopValue begin_fold(PhaseWriter& w, Level level, const Reduction& one) const {
    const DType dtype = group_.type(operand_of(one)).dtype;
    const Fold fold = fold_of(*one.node, dtype);
    return w.accumulator(level, value_type_of(dtype), fold.combine, fold.real, fold.integer);
  }
  // Integers wrap to their type as they would have on the way.
  LoopValue end_fold(PhaseWriter& w, Level level, const Reduction& one, LoopValue accumulator) const {
    const LoopValue value = w.finish(level, accumulator);
    return w.type(value) == ValueType::kI64 ? w.round_to(value, group_.type(operand_of(one)).dtype) : value;
  }
  static LoopOp combining_op(Combine combine, ValueType type) {
    const bool is_bool = type == ValueType::kBool;
    switch (combine) {
      case Combine::kSum:
        return LoopOp::kAdd;
      case Combine::kProduct:
        return LoopOp::kMul;
      case Combine::kMax:
        return is_bool ? LoopOp::kBitOr : LoopOp::kMax;
      case Combine::kMin:
        return is_bool ? LoopOp::kBitAnd : LoopOp::kMin;
    }
    return LoopOp::kAdd;
  }

  // Shares that are kept for every column start as nothing.
  void clear_shares(PhaseWriter& w) {
    w.begin_sweep(Level::kItem);
    for (const Reduction& one : reductions_.all) {
      if (!one.across || kept_loops(one).empty()) continue;
      const DType dtype = group_.type(operand_of(one)).dtype;
      const Fold fold = fold_of(*one.node, dtype);
      const ValueType type = value_type_of(dtype);
      const LoopValue start = is_floating(dtype) ? w.constant(type, fold.real) : w.integer(type, fold.integer);
      w.store(Level::kSweep, one.shares, share_position(one, PhaseWriter::item()), start);
    }
    w.end_sweep();
  }

  // A thread's own memory for a row's costly elements, if the row is not too long. Both writings of a phase use the
  // same buffers.
  void keep_costly(ElementWriter& elements) {
    if (reductions_.form.kind != PhaseForm::Kind::kRows && reductions_.form.kind != PhaseForm::Kind::kChunks) return;
    Affine column;
    int64_t count = 1;
    for (size_t i = reductions_.form.columns.size(); i-- > 0;) {
      column = column + Affine::of(reductions_.form.columns[i], count);
      count *= space_.extents[reductions_.form.columns[i]];
    }
    elements.keep_costly(column, [this, count, used = size_t{0}](DType dtype) mutable -> std::optional<uint32_t> {
      if (count * size_of(dtype) > limits_.local_bytes) return std::nullopt;
      if (used < locals_.size() && program_.buffers[locals_[used]].dtype == dtype) return locals_[used++];
      if (used == locals_.size() && used < 2) {
        locals_.push_back(static_cast<uint32_t>(program_.buffers.size()));
        program_.buffers.push_back({LoopBuffer::Kind::kLocal, dtype, count, 0});
        return locals_[used++];
      }
      return std::nullopt;
    });
  }

  void write_rows(PhaseWriter& w, ElementWriter& elements) {
    keep_costly(elements);
    clear_shares(w);
    std::map<const Reduction*, LoopValue> folds;
    for (const Reduction& one : reductions_.all)
      if (one.across && kept_loops(one).empty()) folds[&one] = begin_fold(w, Level::kItem, one);
    int sweeps = 0;
    for (const Reduction& one : reductions_.all) sweeps = std::max(sweeps, one.depth);
    for (size_t place : element_outputs_)
      sweeps = std::max(sweeps, reductions_.depths[group_.outputs[place].tensor.index()]);
    for (int sweep = 0; sweep <= sweeps; ++sweep) write_sweep(w, elements, sweep, folds);
    for (size_t place : row_outputs_) {
      const TensorId id = group_.outputs[place].tensor;
      store_output(w, Level::kRow, place, elements.element(id, map_of(id)));
    }
    w.end_rows();
    for (const Reduction& one : reductions_.all)
      if (one.across && kept_loops(one).empty())
        w.store(Level::kItem, one.shares, PhaseWriter::item(), end_fold(w, Level::kItem, one, folds[&one]));
  }

  // All reductions of what is known before this sweep, and all outputs that need no more.
  void write_sweep(PhaseWriter& w, ElementWriter& elements, int sweep, std::map<const Reduction*, LoopValue>& folds) {
    w.begin_sweep();
    elements.forget_sweep();
    std::vector<std::pair<const Reduction*, LoopValue>> terms;
    for (const Reduction& one : reductions_.all)
      if (one.depth == sweep) terms.emplace_back(&one, elements.element(operand_of(one), map_of(operand_of(one))));
    std::vector<std::pair<size_t, LoopValue>> stores;
    for (size_t place : element_outputs_) {
      const TensorId id = group_.outputs[place].tensor;
      if (reductions_.depths[id.index()] == sweep) stores.emplace_back(place, elements.element(id, map_of(id)));
    }
    std::vector<const Reduction*> finished;
    for (const auto& [one, value] : terms) {
      if (!one->across) {
        folds[one] = begin_fold(w, Level::kRow, *one);
        w.accumulate(Level::kSweep, folds[one], value);
        finished.push_back(one);
      } else if (kept_loops(*one).empty()) {
        const bool in_columns = includes(one->dropped, reductions_.form.columns) && !reductions_.form.columns.empty();
        w.accumulate(in_columns ? Level::kSweep : Level::kRow, folds[one], value);
      } else {
        const Affine position = share_position(*one, PhaseWriter::item());
        const ValueType type = share_type(*one);
        const LoopOp op = combining_op(fold_of(*one->node, stored_type(type)).combine, type);
        w.store(Level::kSweep, one->shares, position, w.compute(op, {w.load(one->shares, type, position), value}));
      }
    }
    for (const auto& [place, value] : stores) store_output(w, Level::kSweep, place, value);
    w.end_sweep();
    for (const Reduction* one : finished) elements.set(result_of(*one), end_fold(w, Level::kRow, *one, folds[one]));
  }

  // A phase for all outputs over the same loops, without rows to wait for.
  template <class F>
  void write_pointwise(const Loops& loops, const std::vector<size_t>& places, F&& prepare) {
    const auto write = [&](PhaseWriter& w, ElementWriter& elements) {
      w.begin_sweep();
      prepare(w, elements);
      std::vector<LoopValue> values;
      for (size_t place : places) {
        const TensorId id = group_.outputs[place].tensor;
        values.push_back(elements.element(id, map_of(id)));
      }
      for (size_t i = 0; i < places.size(); ++i) store_output(w, Level::kSweep, places[i], values[i]);
      w.end_sweep();
    };
    // One long loop where the loops merge into one, else rows of what merges with the last.
    PhaseForm form{PhaseForm::Kind::kRows, {}, loops};
    PhaseWriter trial(form, space_.extents, std::vector<bool>(space_.extents.size(), false));
    ElementWriter elements(group_, space_, trial);
    write(trial, elements);
    if (only_check_) return;
    const std::vector<bool> merged = trial.mergeable();
    size_t first = loops.empty() ? 0 : loops.size() - 1;
    while (first > 0 && merged[loops[first]]) --first;
    if (first == 0) {
      form.kind = PhaseForm::Kind::kFlat;
    } else {
      form.rows.assign(loops.begin(), loops.begin() + static_cast<ptrdiff_t>(first));
      form.columns.assign(loops.begin() + static_cast<ptrdiff_t>(first), loops.end());
    }
    add_phase(form, write);
  }

  // Outputs by the loops that they run over, in the order of the first.
  [[nodiscard]] std::vector<std::pair<Loops, std::vector<size_t>>> by_loops(const std::vector<size_t>& places) const {
    std::vector<std::pair<Loops, std::vector<size_t>>> out;
    for (size_t place : places) {
      const Loops loops = loops_of(map_of(group_.outputs[place].tensor));
      const auto same = std::ranges::find(out, loops, &std::pair<Loops, std::vector<size_t>>::first);
      if (same == out.end())
        out.push_back({loops, {place}});
      else
        same->second.push_back(place);
    }
    return out;
  }

  // Adds up the items' shares, in the order of the items, and computes what is made of the sums.
  void write_shares() {
    for (const auto& [loops, places] : by_loops(final_outputs_)) {
      for (const Reduction& one : reductions_.all) {
        if (!one.across || kept_loops(one) == loops) continue;
        for (size_t place : places)
          if (depends_on(group_.outputs[place].tensor, result_of(one)))
            throw NoLoops("a sum over all rows is spread over other loops");
      }
      write_pointwise(loops, places, [&, loops = loops](PhaseWriter& w, ElementWriter& elements) {
        for (const Reduction& one : reductions_.all) {
          if (!one.across || kept_loops(one) != loops) continue;
          const LoopValue fold = begin_fold(w, Level::kSweep, one);
          const Affine item = w.begin_serial(items_);
          w.accumulate(Level::kSweep, fold, w.load(one.shares, share_type(one), share_position(one, item)));
          w.end_serial();
          elements.set(result_of(one), end_fold(w, Level::kSweep, one, fold));
        }
      });
    }
  }
  [[nodiscard]] bool depends_on(TensorId tensor, TensorId source) const {
    if (tensor == source) return true;
    const Node* node = group_.producer(tensor);
    return node != nullptr &&
           std::ranges::any_of(node->inputs, [&](TensorId input) { return depends_on(input, source); });
  }

  void write_rest() {
    for (const auto& [loops, places] : by_loops(other_outputs_))
      write_pointwise(loops, places, [](PhaseWriter&, ElementWriter&) {});
  }

  // No output has an element.
  void write_nothing() {
    add_phase({PhaseForm::Kind::kFlat, {}, {}}, [](PhaseWriter&, ElementWriter&) {});
  }

  const Graph& group_;
  LoopSpace space_;
  LoopLimits limits_;
  bool only_check_;
  Reductions reductions_;
  std::vector<size_t> element_outputs_, row_outputs_, final_outputs_, other_outputs_;
  std::vector<uint32_t> locals_;  // buffers of a row's costly elements
  int64_t items_ = 1;
  LoopProgram program_;
};

void check_types(const Graph& group) {
  for (const GraphTensor& tensor : group.tensors)
    if (is_complex(tensor.type.dtype)) throw NoLoops(str("{} has no loops", name_of(tensor.type.dtype)));
  for (const Node& node : group.nodes) {
    if (node.aten) throw NoLoops(str("{} is an ATen call", node.op));
    if (op_def(node.op).has(Trait::kComposite)) throw NoLoops(str("{} is a composite", node.op));
    if (node.outputs.size() != 1) throw NoLoops(str("{} has {} results", node.op, node.outputs.size()));
  }
  for (const GraphOutput& output : group.outputs)
    if (!output.tensor.valid() || group.producer(output.tensor) == nullptr)
      throw NoLoops("it returns what it does not make");
  if (group.outputs.empty()) throw NoLoops("it returns nothing");
}

LoopProgram lower_connected(const Graph& group, Together together, const LoopLimits& limits, bool only_check) {
  LoopFactors factors = domain_factors(group);
  constexpr int kMostSplits = 24;
  for (int attempt = 0; attempt < kMostSplits; ++attempt) {
    try {
      return Lowering(group, factors, together, limits, only_check).run();
    } catch (const SplitNeeded& needed) {
      split_loop(factors, needed.split);
    }
  }
  throw NoLoops("its reshapes have no common loops");
}

LoopProgram lower_or_throw(const Graph& group, Together together, const LoopLimits& limits, bool only_check) {
  check_types(group);
  const std::vector<GroupPart> parts = together == Together::kConnected ? parts_of(group) : std::vector<GroupPart>();
  if (parts.empty()) return lower_connected(group, together, limits, only_check);
  std::map<std::string, LoopProgram> known;  // by group_key()
  std::vector<LoopProgram> programs;
  for (const GroupPart& part : parts) {
    const auto [found, is_new] = known.try_emplace(group_key(part.graph));
    if (is_new) found->second = lower_connected(part.graph, together, limits, only_check);
    programs.push_back(found->second);
  }
  return only_check ? LoopProgram() : side_by_side(group, parts, programs);
}

}  // namespace

std::string why_no_loops(const Graph& group, Together together) {
  try {
    lower_or_throw(group, together, {}, true);
    return {};
  } catch (const NoLoops& reason) {
    return reason.what();
  }
}

LoopProgram lower(const Graph& group, Together together, const LoopLimits& limits) {
  try {
    return lower_or_throw(group, together, limits, false);
  } catch (const NoLoops& reason) {
    user_error("a group of {} nodes is not one kernel: {}", group.nodes.size(), reason.what());
  }
}

}  // namespace stepc
