#include "loops/lower/reductions.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "loops/lower/element_writer.h"

namespace stepc {

namespace {
bool contains(const Loops& loops, uint32_t loop) { return std::ranges::find(loops, loop) != loops.end(); }
}  // namespace

bool includes(const Loops& all, const Loops& some) {
  return std::ranges::all_of(some, [&](uint32_t loop) { return contains(all, loop); });
}
Loops without(const Loops& all, const Loops& some) {
  Loops out;
  for (uint32_t loop : all)
    if (!contains(some, loop)) out.push_back(loop);
  return out;
}

namespace {

class Finder {
 public:
  Finder(const Graph& group, const LoopSpace& space) : group_(group), space_(space) {
    for (uint32_t loop = 0; loop < space_.extents.size(); ++loop) all_.push_back(loop);
  }

  Reductions find() {
    find_reductions();
    choose_form();
    classify();
    return std::move(found_);
  }

 private:
  void find_reductions() {
    for (const Node& node : group_.nodes) {
      if (!op_def(node.op).has(Trait::kReduction)) continue;
      fold_of(node, group_.type(node.inputs[0]).dtype);
      if (element_count(group_.shape(node.inputs[0])) == 0) continue;
      const IndexMap& map = space_.map_of(node.inputs[0]);
      Reduction one;
      one.node = &node;
      one.operand = loops_of(map);
      IndexMap dropped;
      for (int64_t dim : node.attrs.get<Shape>("dims")) dropped.push_back(map[static_cast<size_t>(dim)]);
      one.dropped = loops_of(dropped);
      if (!one.dropped.empty()) found_.all.push_back(std::move(one));
    }
  }

  // Whether something that loops over what `one` drops is made from its result.
  bool feeds_back(const Reduction& one) const {
    std::set<TensorId> after = {one.node->outputs[0]};
    for (const Node& node : group_.nodes) {
      const bool reads = std::ranges::any_of(node.inputs, [&](TensorId input) { return after.contains(input); });
      if (!reads) continue;
      for (TensorId output : node.outputs) {
        after.insert(output);
        const auto& map = space_.maps[output.index()];
        if (!map) continue;
        const Loops loops = loops_of(*map);
        if (std::ranges::any_of(one.dropped, [&](uint32_t loop) { return contains(loops, loop); })) return true;
      }
    }
    return false;
  }

  // A few long rows are added up lane by lane: shares of them would be as large as they are.
  bool is_short(const Reduction& one) const {
    constexpr int64_t kFewRows = 64;
    int64_t rows = 1;
    for (uint32_t loop : one.dropped) rows *= space_.extents[loop];
    const bool alone = std::ranges::all_of(
        found_.all, [&](const Reduction& other) { return other.dropped == one.dropped && !feeds_back(other); });
    return rows <= kFewRows && alone;
  }

  void set_rows(PhaseForm::Kind kind, const Loops& columns) { found_.form = {kind, without(all_, columns), columns}; }

  void choose_form() {
    using Kind = PhaseForm::Kind;
    if (found_.all.empty()) return;
    const uint32_t last = all_.back();
    for (const Reduction& one : found_.all)
      if (contains(one.dropped, last) && one.dropped != all_) return set_rows(Kind::kRows, one.dropped);
    for (const Reduction& one : found_.all) {
      if (one.dropped == all_) continue;
      const Loops kept = without(all_, one.dropped);
      const bool is_leading = one.dropped.back() < kept.front();
      if (is_leading && !is_short(one) && !feeds_back(one)) return set_rows(Kind::kChunks, kept);
      return set_rows(Kind::kLanes, one.dropped);
    }
    // All of it to one number.
    constexpr int64_t kMostInOneItem = 1 << 16;
    int64_t count = 1;
    for (int64_t extent : space_.extents) count *= extent;
    const bool whole = std::ranges::any_of(found_.all, [&](const Reduction& one) { return feeds_back(one); });
    if (whole && count > kMostInOneItem) throw NoLoops("all rows wait for a sum over all of them");
    set_rows(whole ? Kind::kRows : Kind::kFlatChunks, all_);
  }

  void classify() {
    const Loops& rows = found_.form.rows;
    const Loops& columns = found_.form.columns;
    for (Reduction& one : found_.all) {
      if (one.dropped == columns && found_.form.kind != PhaseForm::Kind::kFlatChunks) continue;
      const Loops kept = without(one.operand, one.dropped);
      const bool over_rows = includes(one.dropped, rows) && includes(columns, kept) &&
                             (kept.empty() || kept == columns) && includes(one.operand, rows);
      const bool has_chunks = found_.form.kind == PhaseForm::Kind::kRows ||
                              found_.form.kind == PhaseForm::Kind::kChunks ||
                              found_.form.kind == PhaseForm::Kind::kFlatChunks;
      if (!over_rows || !has_chunks) throw NoLoops(str("{} runs over other loops than the rest", one.node->op));
      one.across = true;
      if (found_.form.kind == PhaseForm::Kind::kRows) found_.form.kind = PhaseForm::Kind::kChunks;
    }
    found_.depths.assign(group_.tensors.size(), 0);
    found_.is_final.assign(group_.tensors.size(), false);
    for (const Node& node : group_.nodes) {
      int depth = 0;
      bool is_final = false;
      for (TensorId input : node.inputs) {
        depth = std::max(depth, found_.depths[input.index()]);
        is_final = is_final || found_.is_final[input.index()];
      }
      for (Reduction& one : found_.all) {
        if (one.node != &node) continue;
        if (is_final) throw NoLoops(str("{} of what a sum over all rows gives", node.op));
        one.depth = depth;
        is_final = one.across;
        if (!one.across) ++depth;
      }
      for (TensorId output : node.outputs) {
        found_.depths[output.index()] = depth;
        found_.is_final[output.index()] = is_final;
      }
    }
  }

  const Graph& group_;
  const LoopSpace& space_;
  Loops all_;
  Reductions found_;
};

}  // namespace

Reductions reductions_of(const Graph& group, const LoopSpace& space) { return Finder(group, space).find(); }

}  // namespace stepc
