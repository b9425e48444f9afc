// A host event beside runs of its plan: an optimizer's step() gives the numbers of this call without its kernels. They
// follow from its options and count if these are known (engine/program/known_update.h); otherwise its host code runs as
// a shadow. Borrows the trace.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/shadow.h"
#include "capture/tracer.h"
#include "engine/program/known_update.h"
#include "engine/program/program.h"
#include "ir/trace.h"

namespace stepc {

// Gives a parameter another gradient, or none.
void set_gradient(const at::Tensor& parameter, const at::Tensor& gradient);

class EventUpdate {
 public:
  // `keys`: the program's; the tensors of a run stand in their order, the batch's after them.
  EventUpdate(const Trace& trace, size_t event, const std::vector<OwnedKey>& keys);

  using HandOn = std::function<void(const HostSupply& number, bool is_new)>;
  // Hands on the event's numbers, and counts one further. Returns what its calls did otherwise than recorded, empty if
  // nothing. `before_host_code` is called before the program's own code runs, if it has to. `learns`: it is this plan's
  // own run, of which the next one may profit.
  std::string run(Program& program, const std::vector<at::Tensor>& tensors, bool learns,
                  const std::function<void()>& before_host_code, const HandOn& hand_on);
  // Events that were taken over without their host code.
  [[nodiscard]] int64_t known_updates() const { return known_updates_; }

  // As KnownUpdate's.
  void doubt() { known_.doubt(); }
  void set_stale() { known_.set_stale(); }
  // Where what its own calls write stands among the tensors.
  [[nodiscard]] const std::vector<size_t>& counters() const { return counters_; }

 private:
  struct Gradient {
    size_t parameter = 0;  // its place
    at::Tensor stand_in;   // that the event finds; undefined: none
  };
  std::string shadow(const std::vector<at::Tensor>& tensors, const std::function<void()>& host_code,
                     const SupplyFn& supply);

  std::string key_;
  Shadow shadow_;
  std::vector<Gradient> gradients_;  // of all parameters
  std::vector<size_t> counters_;
  KnownUpdate known_;
  int64_t known_updates_ = 0;
};

}  // namespace stepc
