// BatchRounds: of a step that is cut in time (passes/stages/cut_batch.h), what is another one for each micro-batch,
// which collectives add it up, and what each round of micro-batches needs of the rounds before. Internal to
// passes/stages.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace stepc {

// Where a node stands, for messages.
std::string described(const Node& node);
// Whether it combines what micro-batches have.
bool is_along_turns(const Graph& graph, const Node& node);

class BatchRounds {
 public:
  // `graph` outlives this. Both as cut_batch() has them.
  BatchRounds(const Graph& graph, int zero);

  [[nodiscard]] int64_t count() const { return rounds_; }
  [[nodiscard]] Axis turns() const { return turns_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }  // without the axis of micro-batches
  [[nodiscard]] bool varies(TensorId tensor) const { return varies_[tensor.index()]; }
  // Of what varies the round that computes it, of all else after how many rounds it is known.
  [[nodiscard]] int64_t round_of(TensorId tensor) const { return round_[tensor.index()]; }
  // Collectives that follow from the batch alone, and that all micro-batches need the results of.
  [[nodiscard]] const std::vector<NodeId>& early() const { return early_; }
  // Those that make of a round's micro-batches what an update takes.
  [[nodiscard]] std::vector<NodeId> summed_in(int64_t round) const;
  // What of the step leaves it follows from which of these, guards aside.
  [[nodiscard]] bool is_wanted(NodeId sum) const { return wanted_.contains(sum); }
  // The sum of many numbers, which stands behind the backward pass, is held; of others each micro-batch returns its
  // part.
  [[nodiscard]] bool is_held(NodeId sum) const;
  // What of a micro-batch is added up or returned for it.
  [[nodiscard]] TensorId operand_of(NodeId sum) const;
  // Whether an update exchanges what has been added up.
  [[nodiscard]] bool is_exchanged(NodeId sum) const;
  [[nodiscard]] bool sums(const Node& node) const;
  [[nodiscard]] std::vector<Axis> axes_beside(const Node& node) const;
  // The sums over micro-batches that tensors follow from.
  [[nodiscard]] std::set<NodeId> sums_behind(std::vector<TensorId> tensors) const;
  // What a round computes with that updates before it have made, where it goes on from there: views, casts and, where
  // ranks hold parts, exchanges are each micro-batch's.
  [[nodiscard]] std::set<TensorId> made_before(int64_t round) const;

 private:
  [[nodiscard]] bool is_along(const Node& node) const { return is_along_turns(whole_, node); }
  [[nodiscard]] bool is_early(NodeId id) const;
  [[nodiscard]] bool is_summed(NodeId id) const;
  void find_varying();
  void find_early_sums();
  [[nodiscard]] bool is_early_sum(NodeId id) const;
  // Whether it stands behind the first backward pass's beginning. What makes its operand does not say so: that may be
  // the step's own code behind the pass (a gradient made wider), a view that stands where such code first reads it, or
  // a loss that has its gradient with it, all of the forward phase.
  [[nodiscard]] bool is_behind_backward(NodeId id) const { return backward_ && *backward_ < id; }
  void find_rounds();
  void find_wanted();
  [[nodiscard]] TensorId added(const Node& sum) const;
  [[nodiscard]] TensorId before_narrowing(TensorId tensor) const;

  const Graph& whole_;
  int zero_;
  Axis turns_;
  Mesh mesh_;
  std::vector<bool> varies_;        // by tensor
  std::optional<NodeId> backward_;  // the first node behind the forward pass that varies
  std::vector<int64_t> round_;      // by tensor
  int64_t rounds_ = 1;
  std::vector<NodeId> along_, early_;
  std::set<NodeId> wanted_;
};

}  // namespace stepc
