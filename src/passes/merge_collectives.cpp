#include "passes/merge_collectives.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

constexpr uint64_t kLittle = 4096;  // bytes, for which the share of all does not count

// What may go together.
using Kind = std::tuple<std::string, std::string, DType, Phase>;  // op, attributes
Kind kind_of(const Graph& graph, const Node& node) {
  return {node.op, to_text(node.attrs), graph.type(node.inputs[0]).dtype, node.source.phase};
}

bool is_exchange(const Node& node) { return exchanges(collective_of(node)); }

// The whole tensors, which take memory on every rank.
uint64_t whole_bytes(const Graph& graph, const Node& node) {
  uint64_t bytes = 0;
  for (size_t k = 0; k < node.inputs.size(); ++k)
    bytes +=
        static_cast<uint64_t>(std::max(bytes_of(graph.type(node.inputs[k])), bytes_of(graph.type(node.outputs[k]))));
  return bytes;
}

class Merger {
 public:
  Merger(const Graph& graph, uint64_t bucket_bytes, double share)
      : graph_(graph), r_(graph), is_there_(graph.tensors.size(), false) {
    for (const GraphInput& input : graph.inputs) is_there_[input.tensor.index()] = true;
    for (const Node& node : graph.nodes) {
      if (!is_exchange(node)) continue;
      Bucket& bucket = buckets_[kind_of(graph, node)];
      bucket.bytes_to_come += whole_bytes(graph, node);
      ++bucket.members_to_come;
    }
    for (auto& [kind, bucket] : buckets_) {
      const auto shared = static_cast<uint64_t>(share * static_cast<double>(bucket.bytes_to_come));
      bucket.most = std::min(bucket_bytes, std::max(shared, kLittle));
    }
  }

  Graph run() {
    for (const Node& node : graph_.nodes) visit(node);
    return r_.finish();
  }

 private:
  struct Bucket {
    std::vector<const Node*> members;
    uint64_t bytes = 0, most = 0;
    uint64_t bytes_to_come = 0;
    size_t members_to_come = 0;
  };

  void visit(const Node& node) {
    const bool is_ready = std::ranges::all_of(node.inputs, [&](TensorId input) { return is_there_[input.index()]; });
    if (!is_ready) {
      waiting_.push_back(&node);
      if (is_exchange(node)) make(buckets_.at(kind_of(graph_, node)));
      // Draws and host code keep their order, whatever else an opaque call is.
      if (node.aten)
        while (!waiting_.empty()) make_all();
    } else if (is_exchange(node)) {
      join(node);
    } else {
      r_.keep(node);
      note_made(node);
    }
  }

  void join(const Node& node) {
    Bucket& bucket = buckets_.at(kind_of(graph_, node));
    const uint64_t bytes = whole_bytes(graph_, node);
    // What waited for it may have joined by then.
    while (!bucket.members.empty() && bucket.bytes + bytes > bucket.most) make(bucket);
    bucket.members.push_back(&node);
    bucket.bytes += bytes;
    --bucket.members_to_come;
    if (bucket.members_to_come == 0 || bucket.bytes >= bucket.most) make(bucket);
  }

  // The exchange, and what waited for it.
  void make(Bucket& bucket) {
    const std::vector<const Node*> members = std::exchange(bucket.members, {});
    bucket.bytes = 0;
    if (members.empty()) return;
    std::vector<TensorId> inputs, outputs;
    for (const Node* member : members) {
      for (TensorId input : member->inputs) inputs.push_back(r_[input]);
      outputs.insert(outputs.end(), member->outputs.begin(), member->outputs.end());
      note_made(*member);
    }
    r_.at(*members[0]);
    r_.replace(outputs, r_.b().add_all(members[0]->op, inputs, members[0]->attrs));
    const std::vector<const Node*> again = std::exchange(waiting_, {});
    for (const Node* node : again) visit(*node);
  }
  void make_all() {
    for (auto& [kind, bucket] : buckets_) make(bucket);
  }
  void note_made(const Node& node) {
    for (TensorId output : node.outputs) is_there_[output.index()] = true;
  }

  const Graph& graph_;
  Rewriter r_;
  std::vector<bool> is_there_;  // by tensor
  std::map<Kind, Bucket> buckets_;
  std::vector<const Node*> waiting_;  // in their order
};

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): a PassFn
Graph merge_collectives(Graph graph, uint64_t bucket_bytes, double share) {
  return bucket_bytes == 0 ? graph : Merger(graph, bucket_bytes, share).run();
}

}  // namespace stepc
