#include "passes/stages/cut_batch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/shardings/splits.h"
#include "passes/stages/batch_part.h"
#include "passes/stages/batch_rounds.h"
#include "passes/stages/stage_writer.h"

namespace stepc {

namespace {

class BatchCutter {
 public:
  BatchCutter(const Graph& graph, int zero) : whole_(graph), rounds_(graph, zero), mesh_(rounds_.mesh()) {
    cut_.micro_batches = graph.mesh.size(rounds_.turns());
    cut_.batch = batch_tensors(graph);
    for (const GraphInput& input : graph.inputs) {
      if (input.kind == InputKind::kScalar) cut_.numbers.push_back(input.key);
      if (input.part && input.part->sharding.splits(rounds_.turns())) add_rows(input);
    }
    for (const Node& node : graph.nodes)
      if (is_host_code(node)) add_read(host_code_of(node));
  }

  BatchCut run() {
    for (size_t k = 0; k < rounds_.early().size(); ++k) write_early(k);
    for (int64_t round = 0; round < rounds_.count(); ++round) {
      cut_.rounds.emplace_back();
      write_micro_batch(round);
      if (round + 1 < rounds_.count())
        write_way_on(round);
      else
        write_update();
    }
    return std::move(cut_);
  }

 private:
  void add_read(HostCode code) {
    const auto is_number = [&](const HostCode::Slot& slot) {
      return whole_.inputs[slot.input].kind == InputKind::kScalar;
    };
    USER_CHECK(code.pauses && code.given.size() == 1 && std::ranges::all_of(code.slots, is_number),
               "host code of the program runs inside the step, which cannot be cut into micro-batches");
    reads_.push_back(std::move(code));
  }
  void add_rows(const GraphInput& input) {
    USER_CHECK(input.kind == InputKind::kBatch, "{} '{}' is split into micro-batches", name_of(input.kind), input.key);
    const PartOf& part = *input.part;
    BatchCut::Rows rows{{part.shape, Sharding::whole(part.shape.size())}, 0};
    for (size_t d = 0; d < part.shape.size(); ++d) {
      Pieces pieces = part.sharding.dims[d];
      const auto split = std::ranges::find_if(
          pieces, [&](const Piece& piece) { return std::ranges::count(piece.axes, rounds_.turns()) > 0; });
      if (split != pieces.end()) {
        // A micro-batch is one range of the rank's rows.
        const bool divides =
            std::all_of(pieces.begin(), split, [&](const Piece& piece) { return local_extent(piece, mesh_) == 1; }) &&
            is_even(*split, whole_.mesh);
        std::erase(split->axes, rounds_.turns());
        rows.dim = d;
        int64_t ranks = 1;
        for (const Piece& piece : pieces) ranks *= mesh_.size(piece.axes);
        USER_CHECK(divides, "micro_batches = {}: batch '{}' has {} rows{}, which do not divide", cut_.micro_batches,
                   input.key, part.shape[d], ranks == 1 ? "" : str(" over {} ranks", ranks));
      }
      rows.part.sharding.dims[d] = canonical(std::move(pieces), mesh_);
    }
    cut_.rows[std::stoul(input.key)] = std::move(rows);
  }
  // The same exchange along the other axes alone.
  TensorId exchange_beside(GraphBuilder& b, const Node& node, TensorId x) const {
    const std::vector<Axis> axes = rounds_.axes_beside(node);
    if (axes.empty()) return x;
    Attrs attrs = node.attrs;
    attrs.set("axes", Shape(axes.begin(), axes.end()));
    attrs.set("ranks", mesh_.size(axes));
    return b.add(node.op, {x}, attrs);
  }

  // What all parts take beside the batch.
  void give_early(BatchPart& part, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const TensorId sum = whole_.nodes[rounds_.early()[k].index()].outputs[0];
      part.stand_for(sum, part.add_batch(cut_.batch + k, whole_.type(sum)));
    }
    size_t place = cut_.batch + rounds_.early().size();
    for (const GraphInput& input : whole_.inputs)
      if (input.kind == InputKind::kScalar)
        part.stand_for(input.tensor, part.add_batch(place++, whole_.type(input.tensor)));
    for (const HostCode& read : reads_)
      for (const HostCode::Slot& slot : read.slots) part.stand_for(slot.after, part[slot.before]);
  }
  [[nodiscard]] size_t place_behind() const { return cut_.batch + rounds_.early().size() + cut_.numbers.size(); }
  // A micro-batch's rows, and its place.
  void give_rows(BatchPart& part) {
    for (const GraphInput& input : whole_.inputs) {
      if (!rounds_.varies(input.tensor)) continue;
      const TensorType& type = whole_.type(input.tensor);
      const size_t place = input.kind == InputKind::kMesh ? place_behind() : std::stoul(input.key);
      part.stand_for(input.tensor, part.add_batch(place, type));
    }
  }

  void write_early(size_t k) {
    const Node& sum = whole_.nodes[rounds_.early()[k].index()];
    BatchPart part(whole_, mesh_);
    give_early(part, k);
    give_rows(part);
    part.compute(sum.inputs);
    part.b().set_source(sum.source);
    const TensorId made = exchange_beside(part.b(), sum, part[sum.inputs[0]]);
    part.give_back(made);
    cut_.before.push_back(part.take());
  }

  void write_micro_batch(int64_t round) {
    BatchCut::Round& made = cut_.rounds.back();
    // A guard that holds for each micro-batch holds for all of them.
    BatchPart part(whole_, mesh_, [&](GraphBuilder& b, const Node& node, TensorId operand) {
      USER_CHECK(collective_of(node) == Collective::kAllReduce && !rounds_.sums(node),
                 "{} needs what all rows of the batch make: it cannot be cut into micro-batches", described(node));
      return exchange_beside(b, node, operand);
    });
    give_early(part, rounds_.early().size());
    give_rows(part);
    std::vector<TensorId> wanted, guards;
    for (const NodeId id : rounds_.summed_in(round)) wanted.push_back(rounds_.operand_of(id));
    std::vector<const GraphOutput*> checked;
    for (const GraphOutput& output : whole_.outputs) {
      if (output.kind != GraphOutput::Kind::kGuard) continue;
      const int64_t known = rounds_.round_of(output.tensor);
      if ((rounds_.varies(output.tensor) ? known : std::max<int64_t>(known - 1, 0)) != round) continue;
      checked.push_back(&output);
      guards.push_back(output.tensor);
    }
    for (const TensorId tensor : rounds_.made_before(round)) part.stand_for(tensor, part.tensor_of(left(part, tensor)));
    part.compute(wanted);
    part.compute(guards);
    for (const GraphOutput* output : checked) {
      GraphOutput guard = *output;
      guard.tensor = part[output->tensor];
      part.b().graph().outputs.push_back(std::move(guard));
    }
    std::vector<TensorId> returned;
    for (const NodeId id : rounds_.summed_in(round)) {
      if (!rounds_.is_wanted(id)) continue;
      const TensorId operand = rounds_.operand_of(id);
      if (!rounds_.is_held(id)) {
        place_of_[id] = returned_.size();
        returned_.push_back(whole_.type(operand));
        returned.push_back(part[operand]);
        continue;
      }
      const TensorType type = held_type(operand);
      const std::string key = str("sum {} {}", key_of_.size(), to_text(type));
      GraphBuilder& b = part.b();
      b.set_source(whole_.producer(operand)->source);
      const uint32_t input = part.held(key, type);
      part.update(input, b.add("add", {part.tensor_of(input), b.cast(part[operand], type.dtype)}));
      key_of_[id] = key;
      made.sums.push_back(key);
    }
    for (const TensorId tensor : returned) part.give_back(tensor);
    made.micro_batch = part.take();
    USER_CHECK(round > 0 || !made.sums.empty() || !returned.empty(),
               "micro_batches = {}: nothing that the step makes follows from rows of its batch", cut_.micro_batches);
  }
  [[nodiscard]] TensorType held_type(TensorId tensor) const {
    TensorType type = whole_.type(tensor);
    if (is_floating(type.dtype) && size_of(type.dtype) < size_of(DType::kF32)) type.dtype = DType::kF32;
    return type;
  }
  // A tensor that an update leaves for a later part: which input it is.
  uint32_t left(BatchPart& part, TensorId tensor) {
    const auto [known, is_new] = left_.try_emplace(tensor);
    if (is_new) known->second = str("value {} {}", left_.size() - 1, to_text(whole_.type(tensor)));
    return part.held(known->second, whole_.type(tensor));
  }

  BatchPart part_of_update() {
    BatchPart part(whole_, mesh_, [&](GraphBuilder& b, const Node& node, TensorId operand) {
      USER_CHECK(rounds_.sums(node), "{} makes of all rows what cannot be cut into micro-batches", described(node));
      // Of what is the same for all micro-batches.
      const auto times = static_cast<double>(cut_.micro_batches);
      return exchange_beside(b, node, b.add("mul", {operand, b.full(times, b.dtype(operand))}));
    });
    give_early(part, rounds_.early().size());
    return part;
  }
  // In an update: what all micro-batches have made of it.
  void stand_for_sum(BatchPart& part, NodeId id) {
    const Node& node = whole_.nodes[id.index()];
    const TensorId result = node.outputs[0];
    part.b().set_source({Phase::kUpdate, node.source.module});
    if (const auto left = left_.find(result); left != left_.end()) {
      part.stand_for(result, part.tensor_of(part.held(left->second, whole_.type(result))));
    } else if (const auto held = key_of_.find(id); held != key_of_.end()) {
      const TensorId operand = rounds_.operand_of(id);
      const TensorId sum = part.tensor_of(part.held(held->second, held_type(operand)));
      part.stand_for(operand, part.b().cast(sum, whole_.type(operand).dtype));
      part.compute({node.inputs[0]});
      part.b().set_source({Phase::kUpdate, node.source.module});
      part.stand_for(result, exchange_beside(part.b(), node, part[node.inputs[0]]));
    } else {
      part.stand_for(result, together(part, node, place_of_.at(id)));
    }
  }

  // Between two rounds: what the next one computes with, and what ranks have exchanged, which is not done again.
  void write_way_on(int64_t round) {
    std::set<TensorId> leaves = rounds_.made_before(round + 1);
    std::map<TensorId, std::string> exchanged;  // it stands where the sum stood, if it can
    for (const NodeId id : rounds_.summed_in(round)) {
      const auto held = key_of_.find(id);
      if (held == key_of_.end() || !rounds_.is_exchanged(id)) continue;
      const TensorId result = whole_.nodes[id.index()].outputs[0];
      leaves.insert(result);
      if (whole_.type(result) == held_type(rounds_.operand_of(id))) exchanged[result] = held->second;
    }
    BatchPart part = part_of_update();
    const std::vector<TensorId> wanted(leaves.begin(), leaves.end());
    for (const NodeId id : rounds_.sums_behind(wanted)) stand_for_sum(part, id);
    part.compute(wanted);
    left_.insert(exchanged.begin(), exchanged.end());
    for (const TensorId tensor : wanted) {
      const TensorId made = part[tensor];
      part.update(left(part, tensor), made);
    }
    cut_.rounds.back().update = part.take();
  }

  void write_update() {
    BatchPart part = part_of_update();
    std::vector<TensorId> wanted;
    for (const GraphOutput& output : whole_.outputs)
      if (output.tensor.valid() && output.kind != GraphOutput::Kind::kGuard) wanted.push_back(output.tensor);
    for (const HostCode& read : reads_) wanted.push_back(read.given[0].tensor);
    for (const NodeId id : rounds_.sums_behind(wanted)) stand_for_sum(part, id);
    check_is_once(part, wanted);
    part.compute(wanted);
    for (const GraphOutput& output : whole_.outputs) leave(part, output);
    for (const HostCode& read : reads_) leave(part, read);
    cut_.rounds.back().update = part.take();
  }
  // Of what the micro-batches return, what the collective makes of them.
  TensorId together(BatchPart& part, const Node& node, size_t place) {
    GraphBuilder& b = part.b();
    TensorType type = returned_[place];
    type.shape.insert(type.shape.begin(), cut_.micro_batches);
    const TensorId all = part.add_batch(place_behind() + place, type);
    if (rounds_.sums(node)) return exchange_beside(b, node, b.sum(all, {0}));
    USER_CHECK(collective_of(node) == Collective::kAllGather &&
                   static_cast<Axis>(node.attrs.get<Shape>("axes").back()) == rounds_.turns(),
               "{} makes of all rows what cannot be cut into micro-batches", described(node));
    return b.reshape(exchange_beside(b, node, all), whole_.shape(node.outputs[0]));
  }
  // What is computed of rows behind sums of all would have to be so for each micro-batch again.
  void check_is_once(BatchPart& part, std::vector<TensorId> open) {
    std::set<TensorId> seen;
    while (!open.empty()) {
      const TensorId tensor = open.back();
      open.pop_back();
      if (part[tensor].valid() || !seen.insert(tensor).second) continue;
      const Node* node = whole_.producer(tensor);
      if (node == nullptr) {
        USER_CHECK(!rounds_.varies(tensor),
                   "the step leaves its batch's rows, which micro-batches do not have together: it cannot be cut into "
                   "micro-batches");
        continue;
      }
      USER_CHECK(!rounds_.varies(tensor),
                 "{} is computed of rows and left by the step: it cannot be cut into micro-batches", described(*node));
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
    }
  }
  void leave(BatchPart& part, const HostCode& code) {
    part.give_back(part[code.given[0].tensor]);
    StageRead read{code.event, static_cast<uint32_t>(results_++)};
    for (const HostCode::Slot& slot : code.slots) {
      const auto key = std::ranges::find(cut_.numbers, whole_.inputs[slot.input].key);
      const auto place = cut_.batch + rounds_.early().size() + static_cast<size_t>(key - cut_.numbers.begin());
      read.numbers.push_back(static_cast<uint32_t>(place));
    }
    cut_.reads.push_back(std::move(read));
  }
  void leave(BatchPart& part, const GraphOutput& output) {
    using Kind = GraphOutput::Kind;
    Graph& graph = part.b().graph();
    if (output.kind == Kind::kGuard) return;
    if (output.kind == Kind::kRebind && !output.tensor.valid()) return;  // the slot is empty
    const bool is_result = output.kind == Kind::kReturn || output.kind == Kind::kNumber;
    if (!is_result && output.kind != Kind::kUpdate)
      user_error("the step gives {} '{}' another tensor: it cannot be cut into micro-batches", name_of(output.owner),
                 output.key);
    if (is_result) cut_.results.push_back({output.kind == Kind::kNumber, output.tensor.valid() ? results_++ : -1});
    if (!output.tensor.valid()) return;
    GraphOutput left = output;
    left.tensor = part[output.tensor];
    if (output.kind == Kind::kNumber) left.kind = Kind::kReturn;
    if (output.kind == Kind::kUpdate) {
      const GraphInput& input = whole_.inputs[output.input];
      USER_CHECK(input.kind != InputKind::kBatch,
                 "the step writes to its batch, which is cut into micro-batches: write to a clone() of it");
      left.input = part.keep_input(output.input);
    }
    graph.outputs.push_back(std::move(left));
  }

  const Graph& whole_;
  BatchRounds rounds_;
  const Mesh& mesh_;  // without the axis of micro-batches
  std::vector<HostCode> reads_;
  std::map<NodeId, size_t> place_of_;     // by collective: which of a micro-batch's returns it is made of,
  std::map<NodeId, std::string> key_of_;  // or which held sum
  std::map<TensorId, std::string> left_;  // what updates leave for later parts
  std::vector<TensorType> returned_;
  int64_t results_ = 0;
  BatchCut cut_;
};

}  // namespace

BatchCut cut_batch(const Graph& graph, int zero) { return BatchCutter(graph, zero).run(); }

}  // namespace stepc
