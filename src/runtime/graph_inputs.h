// GraphInputs: where the inputs of a Graph come from in a run. The program's tensors are windows of the trace's
// externals; numbers that host code supplies, and the seed of the step's random draws, are tensors owned here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ir/graph.h"
#include "ir/trace.h"

namespace stepc {

class GraphInputs {
 public:
  // `graph` was made of `trace`. Throws UserError where it uses a tensor of the program as another type.
  GraphInputs(const Trace& trace, const Graph& graph);

  // The host gives `call` this number as its argument `arg`.
  void supply(CallId call, size_t arg, const c10::IValue& number);
  // The host has supplied what the Graph cannot take: an integer other than the one built in.
  bool is_unfit() const { return unfit_; }

  // Seeds the step's draws with one number from the default generator, so that seeding, saving and restoring that work
  // as they do in eager. Nothing happens when the step draws none.
  void draw_seed();
  bool draws() const { return seed_.defined(); }

  // Input `input` in this run.
  at::Tensor tensor(size_t input, const std::vector<at::Tensor>& externals) const;

 private:
  struct Origin {
    size_t external = 0;   // index into the trace's externals
    int64_t offset = 0;    // the window begins so many elements after the external's own
    Shape sizes, strides;  // of the window
    at::Tensor number;     // 0-dim, or the seed: in their stead
  };
  // What the host supplies as one argument: numbers of the Graph (a list has several), or an integer built into it.
  struct Supply {
    std::vector<size_t> inputs;
    std::optional<int64_t> integer;
  };

  Origin find_external(const Trace& trace, const Graph& graph, const GraphInput& input) const;
  void find_supplies(const Trace& trace, const std::map<std::string, size_t>& numbers);

  std::vector<Origin> origins_;  // by graph input
  std::map<std::pair<CallId, size_t>, Supply> supplies_;
  at::Tensor seed_;  // i64[2]
  bool unfit_ = false;
};

}  // namespace stepc
