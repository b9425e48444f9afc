// InputMap: the place of each input of a plan among the tensors of a run: the program's tensors by its keys, then the
// batch's, then data that the host makes inside the step. Made once, with the plan; owns only the host data that was
// recorded last.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/program/program.h"
#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

inline constexpr size_t kNoPlace = SIZE_MAX;

// The tensors at these places, undefined where there is no such place.
std::vector<at::Tensor> tensors_at(const std::vector<size_t>& places, const std::vector<at::Tensor>& tensors);

class InputMap {
 public:
  InputMap(const Trace& trace, const Program& program, const std::vector<at::Tensor>& tensors);

  // By input of a schedule, and by external of the trace; kNoPlace: it is none of the program's.
  std::vector<size_t> places_of(const Schedule& schedule) const;
  const std::vector<size_t>& externals() const { return externals_; }

  struct Parameter {
    std::string key;
    size_t place, gradient;  // where the parameter and its gradient stand
  };
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Nullptr: there is none of this key.
  const Parameter* find_parameter(const std::string& key) const;
  // Parameters whose gradients the step throws away unread.
  const std::vector<size_t>& dropped() const { return dropped_; }

  // Why the plan does not fit these tensors: one of them has come to require a gradient, or not to. Empty: it fits.
  std::string changed_source(const std::vector<at::Tensor>& tensors) const;

  // With data that the host makes inside the step: what `now` has by its key, else the last recorded.
  std::vector<at::Tensor> with_host_data(std::vector<at::Tensor> tensors,
                                         const std::map<std::string, at::Tensor>& now) const;
  // Copies data that the host has made since a run began into what that run was given.
  void fill_host_data(const std::string& key, const at::Tensor& data);

 private:
  // A buffer or captured tensor, as it was recorded.
  struct Source {
    size_t place;
    std::string key;
    bool requires_grad, is_leaf;
  };
  void find_places(const Trace& trace, const Program& program);
  void find_sources(const Program& program, const std::vector<at::Tensor>& tensors);
  void find_host_data(const Trace& trace, size_t place);

  std::map<std::pair<Owner, std::string>, size_t> places_;          // of the program's tensors, by owner and key
  size_t batch_place_ = 0;                                          // of the first tensor of the batch
  std::map<std::string, std::pair<size_t, at::Tensor>> host_data_;  // by key: its place, and the last recorded
  std::vector<size_t> externals_, dropped_;
  std::vector<Source> sources_;
  std::vector<Parameter> parameters_;
};

}  // namespace stepc
