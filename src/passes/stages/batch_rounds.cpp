#include "passes/stages/batch_rounds.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/strategy.h"

namespace stepc {

namespace {
// Of more, each layer would be one.
constexpr int64_t kMostRounds = 2;

bool is_linear_by_element(const Node& node) {
  return node.inputs.size() == 1 && has(node, Trait::kElementwise) && has(node, Trait::kLinear);
}
}  // namespace

std::string described(const Node& node) {
  return node.source.module.empty() ? node.op : str("{} (in '{}')", node.op, node.source.module);
}

bool is_along_turns(const Graph& graph, const Node& node) {
  if (!exchanges(collective_of(node))) return false;
  const auto turns = static_cast<int64_t>(*graph.mesh.find(kMicroBatchAxis));
  return std::ranges::count(node.attrs.get<Shape>("axes"), turns) > 0;
}

BatchRounds::BatchRounds(const Graph& graph, int zero)
    : whole_(graph),
      zero_(zero),
      turns_(*graph.mesh.find(kMicroBatchAxis)),
      mesh_(graph.mesh),
      varies_(graph.tensors.size()),
      round_(graph.tensors.size()) {
  INTERNAL_CHECK_EQ(turns_ + 1, mesh_.axes.size(), "the axis of micro-batches is the last");
  mesh_.axes.pop_back();
  find_varying();
  find_early_sums();
  find_rounds();
  find_wanted();
}

bool BatchRounds::sums(const Node& node) const {
  return collective_of(node) == Collective::kAllReduce &&
         node.attrs.get<std::string>("reduce") == name_of(ReduceOp::kSum);
}

std::vector<Axis> BatchRounds::axes_beside(const Node& node) const {
  std::vector<Axis> axes;
  for (const int64_t axis : node.attrs.get<Shape>("axes"))
    if (static_cast<Axis>(axis) != turns_) axes.push_back(static_cast<Axis>(axis));
  return axes;
}

void BatchRounds::find_varying() {
  for (const GraphInput& input : whole_.inputs) {
    const bool is_place = input.kind == InputKind::kMesh && input.key == kMicroBatchAxis;
    varies_[input.tensor.index()] = is_place || (input.part && input.part->sharding.splits(turns_));
  }
  for (size_t n = 0; n < whole_.nodes.size(); ++n) {
    const Node& node = whole_.nodes[n];
    if (is_along(node)) {
      along_.push_back(NodeId(n));
      continue;
    }
    const bool varies = std::ranges::any_of(node.inputs, [&](TensorId input) { return varies_[input.index()]; });
    for (TensorId output : node.outputs) varies_[output.index()] = varies;
    if (varies && node.source.phase != Phase::kForward && !backward_) backward_ = NodeId(n);
  }
}

void BatchRounds::find_early_sums() {
  std::vector<bool> seen(whole_.nodes.size());
  std::vector<TensorId> open;
  for (const Node& node : whole_.nodes) {
    if (node.outputs.empty() || !varies(node.outputs[0])) continue;
    for (TensorId input : node.inputs) open.push_back(input);
  }
  std::set<NodeId> found;
  while (!open.empty()) {
    const TensorId tensor = open.back();
    const NodeId producer = whole_.tensors[tensor.index()].producer;
    open.pop_back();
    if (!producer.valid() || varies(tensor) || seen[producer.index()]) continue;
    seen[producer.index()] = true;
    USER_CHECK(!is_host_code(whole_.nodes[producer.index()]),
               "the step's code makes a number of what it has read, and goes on with its batch's rows by that: it "
               "cannot be cut into micro-batches");
    if (is_along(whole_.nodes[producer.index()])) found.insert(producer);
    for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
  }
  for (const NodeId id : along_)
    if (found.contains(id) && is_early_sum(id)) early_.push_back(id);
}

// Of the batch alone; a gradient's begins another round.
bool BatchRounds::is_early_sum(NodeId id) const {
  const Node& sum = whole_.nodes[id.index()];
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
  USER_CHECK(is_of_batch || (sums(sum) && is_behind_backward(id)),
             "{} needs what all rows of the batch make before the step can go on (as batch statistics do): it cannot "
             "be cut into micro-batches",
             described(named));
  return is_of_batch;
}

void BatchRounds::find_rounds() {
  for (size_t n = 0; n < whole_.nodes.size(); ++n) {
    const Node& node = whole_.nodes[n];
    int64_t round = is_summed(NodeId(n)) ? 1 : 0;
    int64_t latest = 0;
    for (TensorId input : node.inputs) latest = std::max(latest, round_[input.index()]);
    round += latest;
    for (TensorId output : node.outputs) {
      round_[output.index()] = round;
      if (varies(output)) rounds_ = std::max(rounds_, round + 1);
    }
  }
  USER_CHECK(rounds_ <= kMostRounds,
             "the step goes through the rows of its batch {} times, each time by what the time before has made of all "
             "of them: it cannot be cut into micro-batches",
             rounds_);
}

void BatchRounds::find_wanted() {
  std::set<TensorId> seen;
  std::vector<TensorId> open;
  for (const GraphOutput& output : whole_.outputs)
    if (output.tensor.valid() && output.kind != GraphOutput::Kind::kGuard) open.push_back(output.tensor);
  for (const Node& node : whole_.nodes)
    if (is_host_code(node))
      for (const HostCode::Given& given : host_code_of(node).given)
        if (given.tensor.valid()) open.push_back(given.tensor);
  while (!open.empty()) {
    const TensorId tensor = open.back();
    open.pop_back();
    const NodeId producer = whole_.tensors[tensor.index()].producer;
    if (!producer.valid() || !seen.insert(tensor).second) continue;
    if (is_along(whole_.nodes[producer.index()])) wanted_.insert(producer);
    for (TensorId input : whole_.nodes[producer.index()].inputs) open.push_back(input);
  }
}

bool BatchRounds::is_early(NodeId id) const { return std::ranges::find(early_, id) != early_.end(); }

bool BatchRounds::is_summed(NodeId id) const {
  const Node& node = whole_.nodes[id.index()];
  return is_along(node) && !is_early(id) && varies(node.inputs[0]);
}

std::vector<NodeId> BatchRounds::summed_in(int64_t round) const {
  std::vector<NodeId> found;
  for (const NodeId id : along_)
    if (is_summed(id) && round_of(whole_.nodes[id.index()].inputs[0]) == round) found.push_back(id);
  return found;
}

bool BatchRounds::is_held(NodeId id) const {
  const Node& sum = whole_.nodes[id.index()];
  return sums(sum) && element_count(whole_.shape(sum.inputs[0])) > 1 && is_behind_backward(id);
}

TensorId BatchRounds::operand_of(NodeId id) const {
  const Node& sum = whole_.nodes[id.index()];
  return is_held(id) ? added(sum) : sum.inputs[0];
}

bool BatchRounds::is_exchanged(NodeId id) const {
  const Node& sum = whole_.nodes[id.index()];
  return !axes_beside(sum).empty() || operand_of(id) != sum.inputs[0];
}

// Gradients are added up as they are, and made narrower for the exchange of their sum.
TensorId BatchRounds::before_narrowing(TensorId tensor) const {
  TensorId at = tensor;
  const Node* node = whole_.producer(at);
  for (; node != nullptr && is_view(*node); node = whole_.producer(at)) at = node->inputs[0];
  const bool narrows = node != nullptr && is_linear_by_element(*node) &&
                       size_of(whole_.type(at).dtype) < size_of(whole_.type(node->inputs[0]).dtype);
  return narrows ? node->inputs[0] : tensor;
}

TensorId BatchRounds::added(const Node& sum) const {
  TensorId found = before_narrowing(sum.inputs[0]);
  const std::vector<Axis> shard = state_axes(mesh_);
  const auto is_of_state = [&](int64_t axis) { return std::ranges::count(shard, static_cast<Axis>(axis)) > 0; };
  for (TensorId at = found; zero_ < 2 && !shard.empty();) {  // in front of an exchange that waits for the update
    const Node* node = whole_.producer(at);
    if (node == nullptr) break;
    const bool is_scatter = collective_of(*node) == Collective::kReduceScatter &&
                            std::ranges::any_of(node->attrs.get<Shape>("axes"), is_of_state);
    if (!is_scatter && !is_view(*node) && !is_linear_by_element(*node)) break;
    at = node->inputs[0];
    if (is_scatter) found = at = before_narrowing(at);
  }
  return found;
}

std::set<NodeId> BatchRounds::sums_behind(std::vector<TensorId> open) const {
  std::set<NodeId> found;
  std::set<TensorId> seen;
  while (!open.empty()) {
    const TensorId tensor = open.back();
    open.pop_back();
    const NodeId producer = whole_.tensors[tensor.index()].producer;
    if (!producer.valid() || !seen.insert(tensor).second) continue;
    const Node& node = whole_.nodes[producer.index()];
    if (is_summed(producer))
      found.insert(producer);
    else
      open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return found;
}

std::set<TensorId> BatchRounds::made_before(int64_t round) const {
  std::vector<TensorId> open;
  for (const NodeId id : summed_in(round)) open.push_back(operand_of(id));
  const auto is_made = [&](TensorId tensor) { return !varies(tensor) && round_of(tensor) > 0; };
  const auto is_repeated = [&](const Node& node) {
    const bool is_exchange = zero_ >= 3 && exchanges(collective_of(node)) && !is_along(node);
    return is_view(node) || is_linear_by_element(node) || is_exchange;
  };
  std::set<TensorId> found, seen;
  while (!open.empty()) {
    const TensorId tensor = open.back();
    open.pop_back();
    const Node* node = whole_.producer(tensor);
    if (node == nullptr || !seen.insert(tensor).second) continue;
    if (is_made(tensor) && !is_repeated(*node))
      found.insert(tensor);
    else
      open.insert(open.end(), node->inputs.begin(), node->inputs.end());
  }
  return found;
}

}  // namespace stepc
