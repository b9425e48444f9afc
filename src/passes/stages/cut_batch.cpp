#include "passes/stages/cut_batch.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/partition/shardings/splits.h"
#include "passes/stages/stage_writer.h"

namespace stepc {

namespace {

std::string where(const Node& node) {
  return node.source.module.empty() ? node.op : str("{} (in '{}')", node.op, node.source.module);
}

bool is_along_turns(const Graph& graph, const Node& node) {
  if (!exchanges(collective_of(node))) return false;
  const auto turns = static_cast<int64_t>(*graph.mesh.find(kMicroBatchAxis));
  return std::ranges::count(node.attrs.get<Shape>("axes"), turns) > 0;
}

// A part of the step as a Graph of its own: tensors that stand for some of the step's, and what is computed of them.
class Part {
 public:
  // `along`: what stands for a node that exchanges along the axis of micro-batches, of its new operand; nothing: there
  // must be none.
  using Along = std::function<TensorId(GraphBuilder& b, const Node& node, TensorId operand)>;
  Part(const Graph& whole, Mesh mesh, Along along = nullptr) : whole_(whole), along_(std::move(along)) {
    b_.graph().mesh = std::move(mesh);
    now_.resize(whole.tensors.size());
    input_at_.resize(whole.inputs.size());
  }

  GraphBuilder& b() { return b_; }
  [[nodiscard]] TensorId operator[](TensorId old) const { return now_[old.index()]; }
  void stand_for(TensorId old, TensorId now) { now_[old.index()] = now; }
  TensorId add_batch(size_t place, const TensorType& type) {
    return b_.graph().add_input({InputKind::kBatch, str("{}", place), {}, {}, 0}, type);
  }
  // An input of the step as it is.
  uint32_t keep_input(uint32_t input) {
    if (!input_at_[input]) {
      input_at_[input] = static_cast<uint32_t>(b_.graph().inputs.size());
      GraphInput kept = whole_.inputs[input];
      now_[kept.tensor.index()] = b_.graph().add_input(kept, whole_.type(kept.tensor));
    }
    return *input_at_[input];
  }
  // Computes them, of what there is and of the step's inputs.
  void compute(const std::vector<TensorId>& wanted) {
    std::vector<bool> is_needed(whole_.nodes.size());
    std::set<TensorId> inputs;
    std::vector<TensorId> open = wanted;
    while (!open.empty()) {
      const TensorId tensor = open.back();
      open.pop_back();
      if (now_[tensor.index()].valid()) continue;
      const NodeId producer = whole_.tensors[tensor.index()].producer;
      if (!producer.valid()) {
        inputs.insert(tensor);
        continue;
      }
      if (is_needed[producer.index()]) continue;
      is_needed[producer.index()] = true;
      for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
    }
    for (uint32_t i = 0; i < whole_.inputs.size(); ++i)
      if (inputs.contains(whole_.inputs[i].tensor)) keep_input(i);
    for (size_t n = 0; n < whole_.nodes.size(); ++n)
      if (is_needed[n]) add(whole_.nodes[n]);
  }
  Graph take() { return b_.take(); }

 private:
  void add(const Node& node) {
    b_.set_source(node.source);
    if (is_along_turns(whole_, node)) {
      INTERNAL_CHECK(along_ != nullptr, "{} is not of this part", where(node));
      now_[node.outputs[0].index()] = along_(b_, node, now_[node.inputs[0].index()]);
      return;
    }
    Node made = node;
    std::vector<TensorType> types;
    for (TensorId& input : made.inputs) input = now_[input.index()];
    for (TensorId output : node.outputs) types.push_back(whole_.type(output));
    const NodeId id = b_.graph().add_node(std::move(made), types);
    for (size_t k = 0; k < types.size(); ++k)  // one that stands for another already stays
      if (TensorId& stands = now_[node.outputs[k].index()]; !stands.valid())
        stands = b_.graph().nodes[id.index()].outputs[k];
  }

  const Graph& whole_;
  Along along_;
  GraphBuilder b_;
  std::vector<TensorId> now_;                      // by tensor of the whole
  std::vector<std::optional<uint32_t>> input_at_;  // by input of the whole
};

class BatchCutter {
 public:
  explicit BatchCutter(const Graph& graph)
      : whole_(graph), turns_(*graph.mesh.find(kMicroBatchAxis)), mesh_(graph.mesh), varies_(graph.tensors.size()) {
    INTERNAL_CHECK_EQ(turns_ + 1, mesh_.axes.size(), "the axis of micro-batches is the last");
    mesh_.axes.pop_back();
    cut_.micro_batches = graph.mesh.size(turns_);
    cut_.batch = batch_tensors(graph);
    for (const GraphInput& input : graph.inputs)
      if (input.kind == InputKind::kScalar) cut_.numbers.push_back(input.key);
    for (const Node& node : graph.nodes)
      if (is_host_code(node)) add_read(host_code_of(node));
  }

  BatchCut run() {
    find_varying();
    find_early_sums();
    for (size_t k = 0; k < early_.size(); ++k) write_early(k);
    write_micro_batch();
    write_update();
    return std::move(cut_);
  }

 private:
  [[nodiscard]] bool is_along(const Node& node) const { return is_along_turns(whole_, node); }
  [[nodiscard]] bool sums(const Node& node) const {
    return collective_of(node) == Collective::kAllReduce &&
           node.attrs.get<std::string>("reduce") == name_of(ReduceOp::kSum);
  }
  [[nodiscard]] std::vector<Axis> axes_beside(const Node& node) const {
    std::vector<Axis> axes;
    for (const int64_t axis : node.attrs.get<Shape>("axes"))
      if (static_cast<Axis>(axis) != turns_) axes.push_back(static_cast<Axis>(axis));
    return axes;
  }
  void add_read(HostCode code) {
    const auto is_number = [&](const HostCode::Slot& slot) {
      return whole_.inputs[slot.input].kind == InputKind::kScalar;
    };
    USER_CHECK(code.pauses && code.given.size() == 1 && std::ranges::all_of(code.slots, is_number),
               "host code of the program runs inside the step, which cannot be cut into micro-batches");
    reads_.push_back(std::move(code));
  }
  // The same exchange along the other axes alone.
  TensorId exchange_beside(GraphBuilder& b, const Node& node, TensorId x) const {
    const std::vector<Axis> axes = axes_beside(node);
    if (axes.empty()) return x;
    Attrs attrs = node.attrs;
    attrs.set("axes", Shape(axes.begin(), axes.end()));
    attrs.set("ranks", mesh_.size(axes));
    return b.add(node.op, {x}, attrs);
  }

  // What is another one for each micro-batch.
  void find_varying() {
    for (const GraphInput& input : whole_.inputs) {
      const bool is_place = input.kind == InputKind::kMesh && input.key == kMicroBatchAxis;
      const bool has_rows = input.part && input.part->sharding.splits(turns_);
      varies_[input.tensor.index()] = is_place || has_rows;
      if (has_rows) add_rows(input);
    }
    for (size_t n = 0; n < whole_.nodes.size(); ++n) {
      const Node& node = whole_.nodes[n];
      const bool varies = std::ranges::any_of(node.inputs, [&](TensorId input) { return varies_[input.index()]; });
      if (is_along(node)) {
        along_.push_back(NodeId(n));
        continue;
      }
      for (TensorId output : node.outputs) varies_[output.index()] = varies;
    }
  }
  void add_rows(const GraphInput& input) {
    USER_CHECK(input.kind == InputKind::kBatch, "{} '{}' is split into micro-batches", name_of(input.kind), input.key);
    const PartOf& part = *input.part;
    BatchCut::Rows rows{{part.shape, Sharding::whole(part.shape.size())}, 0};
    for (size_t d = 0; d < part.shape.size(); ++d) {
      Pieces pieces = part.sharding.dims[d];
      const auto split =
          std::ranges::find_if(pieces, [&](const Piece& piece) { return std::ranges::count(piece.axes, turns_) > 0; });
      if (split != pieces.end()) {
        // A micro-batch is one stretch of the rank's rows.
        const bool divides =
            std::all_of(pieces.begin(), split, [&](const Piece& piece) { return local_extent(piece, mesh_) == 1; }) &&
            is_even(*split, whole_.mesh);
        std::erase(split->axes, turns_);
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

  // Collectives that a micro-batch needs the results of.
  void find_early_sums() {
    std::vector<bool> seen(whole_.nodes.size());
    std::vector<TensorId> open;
    for (const Node& node : whole_.nodes) {
      if (node.outputs.empty() || !varies_[node.outputs[0].index()]) continue;
      for (TensorId input : node.inputs) open.push_back(input);
    }
    std::set<NodeId> found;
    while (!open.empty()) {
      const NodeId producer = whole_.tensors[open.back().index()].producer;
      const bool varies = varies_[open.back().index()];
      open.pop_back();
      if (!producer.valid() || varies || seen[producer.index()]) continue;
      seen[producer.index()] = true;
      USER_CHECK(!is_host_code(whole_.nodes[producer.index()]),
                 "the step's code makes a number of what it has read, and goes on with its batch's rows by that: it "
                 "cannot be cut into micro-batches");
      if (is_along(whole_.nodes[producer.index()])) found.insert(producer);
      for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
    }
    for (const NodeId id : along_) {
      if (!found.contains(id)) continue;
      check_is_of_batch(whole_.nodes[id.index()]);
      early_.push_back(id);
    }
  }
  void check_is_of_batch(const Node& sum) const {
    const Node* maker = whole_.producer(sum.inputs[0]);
    const Node& named = maker == nullptr ? sum : *maker;
    bool is_of_batch = sums(sum);
    std::set<TensorId> seen;
    std::vector<TensorId> open = sum.inputs;
    while (!open.empty()) {
      const TensorId tensor = open.back();
      open.pop_back();
      if (!seen.insert(tensor).second) continue;
      const Node* node = whole_.producer(tensor);
      if (node != nullptr) {
        open.insert(open.end(), node->inputs.begin(), node->inputs.end());
        continue;
      }
      const InputKind kind = whole_.inputs[whole_.tensors[tensor.index()].place].kind;
      is_of_batch &= kind != InputKind::kParameter && kind != InputKind::kOptimizerState;
    }
    USER_CHECK(is_of_batch,
               "{} needs what all rows of the batch make before the step can go on (as batch statistics do): it cannot "
               "be cut into micro-batches",
               where(named));
  }

  // What all parts take beside the batch.
  void give_early(Part& part, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const TensorId sum = whole_.nodes[early_[k].index()].outputs[0];
      part.stand_for(sum, part.add_batch(cut_.batch + k, whole_.type(sum)));
    }
    size_t place = cut_.batch + early_.size();
    for (const GraphInput& input : whole_.inputs)
      if (input.kind == InputKind::kScalar)
        part.stand_for(input.tensor, part.add_batch(place++, whole_.type(input.tensor)));
    for (const HostCode& read : reads_)
      for (const HostCode::Slot& slot : read.slots) part.stand_for(slot.after, part[slot.before]);
  }
  [[nodiscard]] size_t place_behind() const { return cut_.batch + early_.size() + cut_.numbers.size(); }
  // A micro-batch's rows, and its place.
  void give_rows(Part& part) {
    for (const GraphInput& input : whole_.inputs) {
      if (!varies_[input.tensor.index()]) continue;
      const TensorType& type = whole_.type(input.tensor);
      const size_t place = input.kind == InputKind::kMesh ? place_behind() : std::stoul(input.key);
      part.stand_for(input.tensor, part.add_batch(place, type));
    }
  }

  static void give_back(Graph& graph, TensorId tensor) {
    GraphOutput output;
    output.tensor = tensor;
    graph.outputs.push_back(std::move(output));
  }

  void write_early(size_t k) {
    const Node& sum = whole_.nodes[early_[k].index()];
    Part part(whole_, mesh_);
    give_early(part, k);
    give_rows(part);
    part.compute(sum.inputs);
    part.b().set_source(sum.source);
    const TensorId made = exchange_beside(part.b(), sum, part[sum.inputs[0]]);
    cut_.before.push_back(part.take());
    give_back(cut_.before.back(), made);
  }

  // The sum of many numbers of the backward pass is held; of others each micro-batch returns its part.
  [[nodiscard]] bool is_held(const Node& sum) const {
    const Node* maker = whole_.producer(sum.inputs[0]);
    const bool is_backward = maker != nullptr && maker->source.phase != Phase::kForward;
    return sums(sum) && is_backward && element_count(whole_.shape(sum.inputs[0])) > 1;
  }
  [[nodiscard]] TensorType held_type(const Node& sum) const {
    TensorType type = whole_.type(sum.inputs[0]);
    if (is_floating(type.dtype) && size_of(type.dtype) < size_of(DType::kF32)) type.dtype = DType::kF32;
    return type;
  }
  [[nodiscard]] bool is_early(NodeId id) const { return std::ranges::find(early_, id) != early_.end(); }

  void write_micro_batch() {
    // A guard that holds for each micro-batch holds for all of them.
    Part part(whole_, mesh_, [&](GraphBuilder& b, const Node& node, TensorId operand) {
      USER_CHECK(collective_of(node) == Collective::kAllReduce && !sums(node),
                 "{} needs what all rows of the batch make: it cannot be cut into micro-batches", where(node));
      return exchange_beside(b, node, operand);
    });
    give_early(part, early_.size());
    give_rows(part);
    std::vector<TensorId> wanted;
    for (const NodeId id : along_)
      if (!is_early(id)) wanted.push_back(whole_.nodes[id.index()].inputs[0]);
    // Operands of later sums that follow from earlier ones are the update's.
    std::erase_if(wanted, [&](TensorId tensor) { return !varies_[tensor.index()]; });
    part.compute(wanted);
    std::vector<TensorId> guards;
    for (const GraphOutput& output : whole_.outputs)
      if (output.kind == GraphOutput::Kind::kGuard) guards.push_back(output.tensor);
    part.compute(guards);
    for (const GraphOutput& output : whole_.outputs) {
      if (output.kind != GraphOutput::Kind::kGuard) continue;
      GraphOutput guard = output;
      guard.tensor = part[output.tensor];
      part.b().graph().outputs.push_back(std::move(guard));
    }
    std::vector<TensorId> returned;
    for (const NodeId id : along_) {
      const Node& node = whole_.nodes[id.index()];
      const TensorId operand = node.inputs[0];
      if (is_early(id) || !varies_[operand.index()] || !part[operand].valid() || !is_wanted(id)) continue;
      if (!is_held(node)) {
        place_of_[id] = returned.size();
        returned.push_back(part[operand]);
        continue;
      }
      const std::string key = str("sum {} {}", cut_.sums.size(), to_text(held_type(node)));
      GraphBuilder& b = part.b();
      b.set_source(whole_.producer(operand)->source);
      const auto input = static_cast<uint32_t>(b.graph().inputs.size());
      const TensorId held = b.graph().add_input({InputKind::kGradient, key, {}, {}, 0}, held_type(node));
      GraphOutput update;
      update.kind = GraphOutput::Kind::kUpdate;
      update.input = input;
      update.tensor = b.add("add", {held, b.cast(part[operand], held_type(node).dtype)});
      b.graph().outputs.push_back(std::move(update));
      key_of_[id] = key;
      cut_.sums.push_back(key);
    }
    cut_.micro_batch = part.take();
    for (const TensorId tensor : returned) {
      give_back(cut_.micro_batch, tensor);
      returned_.push_back(cut_.micro_batch.type(tensor));
    }
    USER_CHECK(!cut_.sums.empty() || !returned.empty(),
               "micro_batches = {}: nothing that the step makes follows from rows of its batch", cut_.micro_batches);
  }

  // Whether what leaves the step follows from it, guards aside.
  [[nodiscard]] bool is_wanted(NodeId id) {
    if (!wanted_) {
      wanted_.emplace();
      std::set<TensorId> seen;
      std::vector<TensorId> open;
      for (const GraphOutput& output : whole_.outputs)
        if (output.tensor.valid() && output.kind != GraphOutput::Kind::kGuard) open.push_back(output.tensor);
      for (const HostCode& read : reads_) open.push_back(read.given[0].tensor);
      while (!open.empty()) {
        const TensorId tensor = open.back();
        open.pop_back();
        const NodeId producer = whole_.tensors[tensor.index()].producer;
        if (!producer.valid() || !seen.insert(tensor).second) continue;
        if (is_along(whole_.nodes[producer.index()])) wanted_->insert(producer);
        for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
      }
    }
    return wanted_->contains(id);
  }

  void write_update() {
    Part part(whole_, mesh_, [&](GraphBuilder& b, const Node& node, TensorId operand) {
      USER_CHECK(sums(node), "{} makes of all rows what cannot be cut into micro-batches", where(node));
      // Of what is the same for all micro-batches.
      const auto times = static_cast<double>(cut_.micro_batches);
      return exchange_beside(b, node, b.add("mul", {operand, b.full(times, b.dtype(operand))}));
    });
    give_early(part, early_.size());
    for (const NodeId id : along_) {
      const Node& node = whole_.nodes[id.index()];
      const TensorId result = node.outputs[0];
      part.b().set_source({Phase::kUpdate, node.source.module});
      if (const auto held = key_of_.find(id); held != key_of_.end()) {
        const TensorId sum =
            part.b().graph().add_input({InputKind::kGradient, held->second, {}, {}, 0}, held_type(node));
        part.stand_for(result, exchange_beside(part.b(), node, part.b().cast(sum, whole_.type(node.inputs[0]).dtype)));
      } else if (const auto place = place_of_.find(id); place != place_of_.end()) {
        part.stand_for(result, together(part, node, place->second));
      }
    }
    std::vector<TensorId> wanted;
    for (const GraphOutput& output : whole_.outputs)
      if (output.tensor.valid() && output.kind != GraphOutput::Kind::kGuard) wanted.push_back(output.tensor);
    for (const HostCode& read : reads_) wanted.push_back(read.given[0].tensor);
    check_is_once(part, wanted);
    part.compute(wanted);
    for (const GraphOutput& output : whole_.outputs) leave(part, output);
    for (const HostCode& read : reads_) leave(part, read);
    cut_.update = part.take();
  }
  // Of what the micro-batches return, what the collective makes of them.
  TensorId together(Part& part, const Node& node, size_t place) {
    GraphBuilder& b = part.b();
    TensorType type = returned_[place];
    type.shape.insert(type.shape.begin(), cut_.micro_batches);
    const TensorId all = part.add_batch(place_behind() + place, type);
    if (sums(node)) return exchange_beside(b, node, b.sum(all, {0}));
    USER_CHECK(collective_of(node) == Collective::kAllGather &&
                   static_cast<Axis>(node.attrs.get<Shape>("axes").back()) == turns_,
               "{} makes of all rows what cannot be cut into micro-batches", where(node));
    return b.reshape(exchange_beside(b, node, all), whole_.shape(node.outputs[0]));
  }
  // What is computed of rows behind sums of all would have to be so for each micro-batch again.
  void check_is_once(Part& part, std::vector<TensorId> open) {
    std::set<TensorId> seen;
    while (!open.empty()) {
      const TensorId tensor = open.back();
      open.pop_back();
      if (part[tensor].valid() || !seen.insert(tensor).second) continue;
      const Node* node = whole_.producer(tensor);
      if (node == nullptr) {
        USER_CHECK(!varies_[tensor.index()],
                   "the step leaves its batch's rows, which micro-batches do not have together: it cannot be cut into "
                   "micro-batches");
        continue;
      }
      USER_CHECK(!varies_[tensor.index()],
                 "{} is computed of rows and left by the step: it cannot be cut into micro-batches", where(*node));
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
    }
  }
  void leave(Part& part, const HostCode& code) {
    give_back(part.b().graph(), part[code.given[0].tensor]);
    StageRead read{code.event, static_cast<uint32_t>(results_++)};
    for (const HostCode::Slot& slot : code.slots) {
      const auto key = std::ranges::find(cut_.numbers, whole_.inputs[slot.input].key);
      const auto place = cut_.batch + early_.size() + static_cast<size_t>(key - cut_.numbers.begin());
      read.numbers.push_back(static_cast<uint32_t>(place));
    }
    cut_.reads.push_back(std::move(read));
  }
  void leave(Part& part, const GraphOutput& output) {
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
  Axis turns_;
  Mesh mesh_;                 // without that axis
  std::vector<bool> varies_;  // by tensor: another one for each micro-batch
  std::vector<NodeId> along_, early_;
  std::vector<HostCode> reads_;
  std::map<NodeId, size_t> place_of_;     // by collective: which of a micro-batch's returns it is made of,
  std::map<NodeId, std::string> key_of_;  // or which held sum
  std::vector<TensorType> returned_;
  std::optional<std::set<NodeId>> wanted_;
  int64_t results_ = 0;
  BatchCut cut_;
};

}  // namespace

BatchCut cut_batch(const Graph& graph) { return BatchCutter(graph).run(); }

}  // namespace stepc
