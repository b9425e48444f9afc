#include "passes/stages/cut_stages.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/stages/stage_writer.h"

namespace stepc {

namespace {

// Of more elements, what follows from parameters of several stages would be sent between them at every step.
constexpr int64_t kMostOfAll = 4096;

// ---- a micro-batch

// Sums of which several stages make terms, as the gradient of a tied embedding: what each makes of them.
class StageTerms {
 public:
  StageTerms(Graph& graph, std::vector<std::optional<StagePlace>>& places, TensorId held)
      : graph_(graph), places_(places), held_(held) {}

  const std::set<int64_t>& stages_of(TensorId tensor) {
    const auto known = stages_.find(tensor);
    if (known != stages_.end()) return known->second;
    std::set<int64_t> stages;
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (producer.valid() && places_[producer.index()]) {
      const Node& node = graph_.nodes[producer.index()];
      if (is_open(node))
        for (TensorId input : node.inputs) stages.insert(stages_of(input).begin(), stages_of(input).end());
      else
        stages.insert(places_[producer.index()]->stage);
    }
    return stages_[tensor] = std::move(stages);
  }

  // The part of the sum that is made at `stage`, as new nodes; nullopt: nothing is.
  std::optional<TensorId> at(TensorId tensor, int64_t stage) {
    if (tensor == held_) return tensor;
    const std::set<int64_t>& stages = stages_of(tensor);
    if (!stages.contains(stage)) return std::nullopt;
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    const Node node = graph_.nodes[producer.index()];
    if (stages.size() == 1 && !reaches_held(tensor) && places_[producer.index()]->stage == stage) return tensor;
    if (!is_open(node)) return tensor;
    std::vector<TensorId> parts;
    for (TensorId input : node.inputs)
      if (const auto part = at(input, stage)) parts.push_back(*part);
    if (parts.size() < node.inputs.size() && node.inputs.size() > 1) return parts.at(0);
    Node copy = node;
    copy.inputs = parts;
    const NodeId made = graph_.add_node(std::move(copy), {graph_.type(node.outputs[0])});
    places_.emplace_back(StagePlace{true, stage});
    return graph_.nodes[made.index()].outputs[0];
  }

 private:
  // Of sums of its operands it makes sums of results: each stage can do it to its own terms. It does not make less of
  // more: what a stage sums over its rows is a gradient that comes from the stage behind it in any case.
  bool is_open(const Node& node) {
    if (node.aten || node.outputs.size() != 1) return false;
    const OpDef& op = op_def(node.op);
    const bool adds = node.inputs.size() == 2 && op.has(Trait::kLinear) && op.has(Trait::kCommutative) &&
                      graph_.shape(node.inputs[0]) == graph_.shape(node.inputs[1]);
    const bool passes_on = node.inputs.size() == 1 &&
                           ((op.has(Trait::kLinear) && elements(node.outputs[0]) >= elements(node.inputs[0])) ||
                            op.collective == Collective::kReduceScatter || op.collective == Collective::kAllReduce);
    return adds || passes_on;
  }
  [[nodiscard]] int64_t elements(TensorId tensor) const { return element_count(graph_.shape(tensor)); }
  bool reaches_held(TensorId tensor) {
    if (tensor == held_) return true;
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid() || !places_[producer.index()] || !is_open(graph_.nodes[producer.index()])) return false;
    return std::ranges::any_of(graph_.nodes[producer.index()].inputs,
                               [&](TensorId input) { return reaches_held(input); });
  }

  Graph& graph_;
  std::vector<std::optional<StagePlace>>& places_;  // by node
  TensorId held_;
  std::map<TensorId, std::set<int64_t>> stages_;
};

class MicroBatchCut {
 public:
  MicroBatchCut(const Graph& graph, const StagePlaces& places, bool splits_backward)
      : graph_(graph), stages_(places.stages), places_(places.of_node), splits_backward_(splits_backward) {}

  StageCut run() {
    has_backward_ = std::ranges::any_of(places_, [](const auto& place) { return place && place->is_backward; });
    splits_backward_ &= has_backward_;
    for (uint32_t o = 0; o < graph_.outputs.size(); ++o) place_output(o);
    if (splits_backward_) find_weights();
    add_functions();
    outputs_.resize(functions_.size());
    std::set<int64_t> seen;
    for (const auto& [output, stage] : placed_) outputs_[function_that_leaves(output, stage)].push_back(output);
    for (uint32_t f = 0; f < functions_.size(); ++f)
      if (seen.insert(functions_[f].stage).second)
        outputs_[f].insert(outputs_[f].end(), everywhere_.begin(), everywhere_.end());
    StageWriter writer(graph_, stages_, functions_, [&](TensorId tensor, uint32_t) { return made_in(tensor); });
    StageCut cut = writer.write(outputs_);
    cut.splits_backward = splits_backward_;
    return cut;
  }

 private:
  using Key = std::pair<StagePlace, bool>;  // and whether it is of weights

  void add_function(std::string_view what, const StagePlace& place, bool is_of_weights = false) {
    function_at_[{place, is_of_weights}] = static_cast<uint32_t>(functions_.size());
    StageFunction& one = functions_.emplace_back();
    one.name = str("{} {}", what, place.stage);
    one.stage = place.stage;
    one.phase = place.is_backward ? Phase::kBackward : Phase::kForward;
    one.is_of_weights = is_of_weights;
  }
  // The last stage's forward pass is part of its backward pass.
  void add_functions() {
    for (int64_t s = 0; s < stages_; ++s)
      if (!has_backward_ || s + 1 < stages_) add_function("forward", {false, s});
    if (!has_backward_) return;
    for (int64_t s = stages_; s-- > 0;)  // nobody waits for the first stage's
      if (!splits_backward_ || s > 0 || stages_ == 1) add_function(splits_backward_ ? "inputs" : "backward", {true, s});
    if (!splits_backward_) return;
    for (int64_t s = stages_; s-- > 0;) add_function("weights", {true, s}, true);
  }
  [[nodiscard]] uint32_t function_of(StagePlace place, bool is_of_weights) const {
    place.is_backward |= has_backward_ && place.stage + 1 == stages_;
    const auto found = function_at_.find({place, is_of_weights});
    return found != function_at_.end() ? found->second : function_at_.at({place, true});
  }
  [[nodiscard]] std::optional<uint32_t> made_in(TensorId tensor) const {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid() || !places_[producer.index()]) return std::nullopt;
    return function_of(*places_[producer.index()], is_of_weights(producer));
  }
  [[nodiscard]] bool is_of_weights(NodeId node) const {
    return splits_backward_ && places_[node.index()]->is_backward && !is_of_inputs_[node.index()];
  }
  [[nodiscard]] uint32_t function_that_leaves(const StageOutput& output, const StagePlace& place) const {
    const NodeId producer = graph_.tensors[output.tensor.index()].producer;
    return function_of(place, producer.valid() && places_[producer.index()] && is_of_weights(producer));
  }

  void place_output(uint32_t o) {
    const GraphOutput output = graph_.outputs[o];
    if (!output.tensor.valid()) return;
    if (output.kind == GraphOutput::Kind::kUpdate && graph_.inputs[output.input].kind == InputKind::kGradient) {
      const TensorId held = graph_.inputs[output.input].tensor;
      StageTerms terms(graph_, places_, held);
      const std::set<int64_t> stages = terms.stages_of(output.tensor);
      if (stages.size() > 1) {
        for (int64_t stage : stages)
          placed_.emplace_back(StageOutput{o, *terms.at(output.tensor, stage)}, StagePlace{true, stage});
        return;
      }
    }
    const NodeId producer = graph_.tensors[output.tensor.index()].producer;
    if (producer.valid() && places_[producer.index()]) {
      placed_.emplace_back(StageOutput{o, output.tensor}, *places_[producer.index()]);
      return;
    }
    // What follows from the batch alone: a guard holds on every stage or on none, so each looks first of all.
    everywhere_.push_back({o, output.tensor});
  }

  // What of the backward passes another stage needs, or the step returns.
  void find_weights() {
    is_of_inputs_.assign(graph_.nodes.size(), false);
    std::vector<bool> is_seen(graph_.nodes.size());
    std::vector<TensorId> open, needed;
    const auto see = [&](TensorId tensor, const std::optional<StagePlace>& by, bool is_returned) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      if (!producer.valid()) return;
      const auto& place = places_[producer.index()];
      if (place && place->is_backward && (is_returned || (by && by->stage != place->stage))) needed.push_back(tensor);
      open.push_back(tensor);
    };
    for (const auto& [output, place] : placed_)
      see(output.tensor, std::nullopt, graph_.outputs[output.output].kind != GraphOutput::Kind::kUpdate);
    while (!open.empty()) {
      const NodeId node = graph_.tensors[open.back().index()].producer;
      open.pop_back();
      if (!node.valid() || is_seen[node.index()]) continue;
      is_seen[node.index()] = true;
      for (TensorId input : graph_.nodes[node.index()].inputs) see(input, places_[node.index()], false);
    }
    while (!needed.empty()) {
      const NodeId node = graph_.tensors[needed.back().index()].producer;
      needed.pop_back();
      if (!node.valid() || !places_[node.index()] || !places_[node.index()]->is_backward) continue;
      if (is_of_inputs_[node.index()]) continue;
      is_of_inputs_[node.index()] = true;
      for (TensorId input : graph_.nodes[node.index()].inputs) needed.push_back(input);
    }
  }

  Graph graph_;
  int64_t stages_;
  std::vector<std::optional<StagePlace>> places_;
  bool splits_backward_, has_backward_ = false;
  std::vector<bool> is_of_inputs_;  // by node, where the backward pass is two
  std::vector<StageFunction> functions_;
  std::map<Key, uint32_t> function_at_;
  std::vector<std::pair<StageOutput, StagePlace>> placed_;
  std::vector<StageOutput> everywhere_;
  std::vector<std::vector<StageOutput>> outputs_;  // by function
};

// ---- an update

class UpdateCut {
 public:
  UpdateCut(const Graph& graph, int64_t stages, const std::map<std::string, std::vector<int64_t>>& holders,
            const std::vector<StageRead>& reads)
      : graph_(graph), stages_(stages), holders_(holders), reads_(reads), of_tensor_(graph.tensors.size()) {}

  StageCut run() {
    // The only stage has all sums: its update is one function, but for what the step's own code reads in between.
    if (stages_ > 1 || !reads_.empty())
      for (const GraphInput& input : graph_.inputs)
        if (const auto* of = holders_of(input.kind, input.key, holders_)) of_tensor_[input.tensor.index()].stages = *of;
    find_read_outputs();
    for (const Node& node : graph_.nodes) {
      find_reads(reads_before(node));
      follow(node);
    }
    find_reads(reads_.size());
    for (const GraphOutput& output : graph_.outputs) follow(output);
    std::vector<StageFunction> functions;
    for (int64_t level = 0; level <= last_; ++level)
      for (int64_t s = 0; s < stages_; ++s) {
        StageFunction& one = functions.emplace_back();
        one.name = level == last_ ? str("update {}", s) : str("sums {} of {}", level + 1, s);
        one.stage = s;
        one.phase = Phase::kUpdate;
        one.reads = static_cast<uint32_t>(
            std::ranges::count_if(read_levels_, [&](int64_t of_read) { return of_read < level; }));
      }
    std::vector<std::vector<StageOutput>> outputs(functions.size());
    for (uint32_t o = 0; o < graph_.outputs.size(); ++o) {
      const GraphOutput& output = graph_.outputs[o];
      if (!output.tensor.valid()) continue;
      const auto read = std::ranges::find(read_outputs_, o);
      const int64_t level =
          read == read_outputs_.end() ? last_ : read_levels_[static_cast<size_t>(read - read_outputs_.begin())];
      for (int64_t s = 0; s < stages_; ++s)
        if (is_of_all(output) || is_held(graph_.inputs[output.input], s))
          outputs[function_at(level, s)].push_back({o, output.tensor});
    }
    for (int64_t s = 0; s < stages_; ++s) keep_exchanged(s, outputs);
    StageWriter writer(graph_, stages_, std::move(functions),
                       [&](TensorId tensor, uint32_t function) { return made_in(tensor, function); });
    return writer.write(outputs);
  }

 private:
  // Whose parameters' stages a tensor is of; none: of all. What is read on all stages goes there from the first, and is
  // there at the next level.
  struct Of {
    std::vector<int64_t> stages = {};
    int64_t level = 0;
    bool goes_to_all = false;
  };

  [[nodiscard]] uint32_t function_at(int64_t level, int64_t stage) const {
    return static_cast<uint32_t>(level * stages_ + stage);
  }
  [[nodiscard]] bool is_held(const GraphInput& input, int64_t stage) const {
    const auto* of = holders_of(input.kind, input.key, holders_);
    return of == nullptr || std::ranges::find(*of, stage) != of->end();
  }
  // Whether every stage leaves it: a result, or what belongs to no parameter.
  [[nodiscard]] bool is_of_all(const GraphOutput& output) const {
    if (output.kind != GraphOutput::Kind::kUpdate) return true;
    const GraphInput& input = graph_.inputs[output.input];
    return holders_of(input.kind, input.key, holders_) == nullptr;
  }

  [[nodiscard]] bool is_large(TensorId tensor) const {
    return element_count(graph_.shape(tensor)) > kMostOfAll || !graph_.tensors[tensor.index()].producer.valid();
  }
  int64_t send_to_all(TensorId tensor, std::string_view why) {
    Of& of = of_tensor_[tensor.index()];
    if (of.stages.empty()) return of.level;
    USER_CHECK(!is_large(tensor),
               "{} takes {} elements of the parameters of one stage on others: the update cannot be cut into stages",
               why, element_count(graph_.shape(tensor)));
    of.goes_to_all = true;
    return of.level + 1;
  }
  // What takes large tensors is where all of those are; what takes small ones of several stages is on all.
  void follow(const Node& node) {
    std::set<std::vector<int64_t>> from, large;
    for (TensorId input : node.inputs) {
      const auto& stages = of_tensor_[input.index()].stages;
      if (stages.empty()) continue;
      from.insert(stages);
      if (is_large(input)) large.insert(stages);
    }
    Of made;
    if (from.size() == 1) made.stages = *from.begin();
    if (!large.empty()) made.stages = *large.begin();
    for (const std::vector<int64_t>& stages : large)
      std::erase_if(made.stages, [&](int64_t stage) { return !std::ranges::binary_search(stages, stage); });
    for (TensorId input : node.inputs) {
      const Of& of = of_tensor_[input.index()];
      const bool is_here = of.stages.empty() || (!made.stages.empty() && std::ranges::includes(of.stages, made.stages));
      made.level = std::max(made.level, is_here ? of.level : send_to_all(input, node.op));
    }
    for (TensorId output : node.outputs) of_tensor_[output.index()] = made;
    last_ = std::max(last_, made.level);
  }
  void find_read_outputs() {
    std::vector<uint32_t> returned;
    for (uint32_t o = 0; o < graph_.outputs.size(); ++o)
      if (graph_.outputs[o].kind == GraphOutput::Kind::kReturn) returned.push_back(o);
    for (const StageRead& read : reads_) read_outputs_.push_back(returned.at(read.result));
  }
  // How many reads stand before a node that takes numbers of the step's own code.
  [[nodiscard]] size_t reads_before(const Node& node) const {
    size_t reads = 0;
    for (TensorId input : node.inputs) {
      if (graph_.tensors[input.index()].producer.valid()) continue;
      const GraphInput& taken = graph_.inputs[graph_.tensors[input.index()].place];
      for (size_t r = reads; r < reads_.size(); ++r)
        if (is_given_behind(reads_[r], taken)) reads = r + 1;
    }
    return reads;
  }
  static bool is_given_behind(const StageRead& read, const GraphInput& input) {
    return input.kind == InputKind::kBatch &&
           std::ranges::find(read.numbers, std::stoul(input.key)) != read.numbers.end();
  }
  // Of the first `end`, the level at which all stages have the number; what the code gives behind it is of the next.
  void find_reads(size_t end) {
    for (size_t r = read_levels_.size(); r < end; ++r) {
      const int64_t level = send_to_all(graph_.outputs[read_outputs_[r]].tensor, "what the step reads");
      read_levels_.push_back(r == 0 ? level : std::max(level, read_levels_.back()));
      last_ = std::max(last_, read_levels_.back() + 1);
      for (const GraphInput& input : graph_.inputs)
        if (is_given_behind(reads_[r], input)) of_tensor_[input.tensor.index()].level = read_levels_.back() + 1;
    }
  }
  void follow(const GraphOutput& output) {
    if (output.tensor.valid() && is_of_all(output)) last_ = std::max(last_, send_to_all(output.tensor, "the step"));
  }

  [[nodiscard]] std::optional<uint32_t> made_in(TensorId tensor, uint32_t function) const {
    if (const auto kept = kept_.find({tensor, function}); kept != kept_.end()) return kept->second;
    const Of& of = of_tensor_[tensor.index()];
    if (!of.goes_to_all || static_cast<int64_t>(function) / stages_ <= of.level) return std::nullopt;
    return function_at(of.level, of.stages.front());
  }

  // What a stage has exchanged for its sums it keeps for its update.
  void keep_exchanged(int64_t stage, const std::vector<std::vector<StageOutput>>& outputs) {
    std::map<TensorId, uint32_t> exchanged;
    for (int64_t level = 0; level <= last_; ++level) {
      const uint32_t function = function_at(level, stage);
      std::vector<TensorId> open;
      for (const StageOutput& output : outputs[function]) open.push_back(output.tensor);
      for (uint32_t t = 0; t < of_tensor_.size(); ++t)
        if (const Of& of = of_tensor_[t]; of.goes_to_all && of.level == level && of.stages.front() == stage)
          open.emplace_back(t);
      std::set<TensorId> seen;
      while (!open.empty()) {
        const TensorId tensor = open.back();
        open.pop_back();
        const Node* node = graph_.producer(tensor);
        if (node == nullptr || !seen.insert(tensor).second || made_in(tensor, function)) continue;
        if (exchanges(collective_of(*node))) {
          if (const auto [at, is_new] = exchanged.emplace(tensor, function); !is_new) {
            kept_[{tensor, function}] = at->second;
            continue;
          }
        }
        open.insert(open.end(), node->inputs.begin(), node->inputs.end());
      }
    }
  }

  const Graph& graph_;
  int64_t stages_;
  const std::map<std::string, std::vector<int64_t>>& holders_;
  const std::vector<StageRead>& reads_;
  std::vector<uint32_t> read_outputs_;  // by read: which of the graph's outputs it is,
  std::vector<int64_t> read_levels_;    // and at which level all stages have it
  std::vector<Of> of_tensor_;
  int64_t last_ = 0;                                        // level: that of the functions which update
  std::map<std::pair<TensorId, uint32_t>, uint32_t> kept_;  // by tensor and function, where it was exchanged
};

}  // namespace

StageCut cut_micro_batch(const Graph& graph, const StagePlaces& places, bool splits_backward) {
  return MicroBatchCut(graph, places, splits_backward).run();
}

StageCut cut_update(const Graph& graph, int64_t stages, const std::map<std::string, std::vector<int64_t>>& holders,
                    const std::vector<StageRead>& reads) {
  return UpdateCut(graph, stages, holders, reads).run();
}

const std::vector<int64_t>* holders_of(InputKind kind, const std::string& key,
                                       const std::map<std::string, std::vector<int64_t>>& holders) {
  if (kind != InputKind::kParameter && kind != InputKind::kGradient && kind != InputKind::kOptimizerState)
    return nullptr;
  if (kind != InputKind::kOptimizerState) {
    const auto found = holders.find(key);
    return found == holders.end() ? nullptr : &found->second;
  }
  // "<parameter>.exp_avg", in front of which a program may name its optimizer: the longest that stands in it.
  const std::vector<int64_t>* longest = nullptr;
  size_t size = 0;
  for (size_t begin = 0; begin != std::string::npos; begin = key.find('.', begin) + 1) {
    for (size_t end = key.size(); end != std::string::npos && end > begin + size; end = key.rfind('.', end - 1))
      if (const auto found = holders.find(key.substr(begin, end - begin)); found != holders.end()) {
        longest = &found->second;
        size = end - begin;
        break;
      }
    if (key.find('.', begin) == std::string::npos) break;
  }
  return longest;
}

}  // namespace stepc
