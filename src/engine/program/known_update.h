// KnownUpdate: a host event whose host code need not run before a replay, because the numbers that it passes to its
// calls follow from its options and its step count (Program::host_numbers). Two runs of the code without its kernels,
// one of them with other options and another count, map arguments to these numbers. A replay then computes the numbers
// and increments the count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capture/shadow.h"
#include "capture/tracer.h"
#include "engine/program/program.h"

namespace stepc {

class KnownUpdate {
 public:
  // Runs host code instead of the event, without kernels, as Shadow::run().
  using RunFn = std::function<std::string(const std::function<void()>& host_code, const SupplyFn& supply)>;

  KnownUpdate() = default;
  // `key` is the event's. `counters`: the places, among the program's tensors, of what its own calls write.
  KnownUpdate(std::string key, std::vector<size_t> counters) : key_(std::move(key)), counters_(std::move(counters)) {}

  // Computes the event's numbers without its host code and increments its counters. `supply` receives every number, and
  // whether it differs from the last one. Returns false, with nothing changed, if the host code must run, through
  // learn().
  bool replay(Program& program, const std::vector<at::Tensor>& tensors,
              const std::function<void(const HostSupply&, bool is_new)>& supply);
  // Runs the host code, and once more before if that shows which number is which. Returns the difference between its
  // calls and the recorded ones, empty if there is none.
  std::string learn(Program& program, const std::vector<at::Tensor>& tensors, const RunFn& run, const SupplyFn& supply);
  // The next replay runs the host code again and learns anew.
  void doubt() { form_ = 0; }
  // The host code has run elsewhere: the numbers supplied last are not those of replay() or learn().
  void set_stale() { is_stale_ = true; }

 private:
  struct Source {
    HostSupply supplied;           // the last one
    std::vector<double> elements;  // the real numbers in it
    std::vector<int64_t> numbers;  // by element: the index of the host number, or kConstant
  };

  std::optional<double> count_of(const std::vector<at::Tensor>& tensors) const;
  // What the host code passes with other options; nothing if it does not run with them.
  std::optional<std::vector<HostSupply>> probe(Program& program, const std::vector<at::Tensor>& tensors,
                                               const RunFn& run, HostNumbers& numbers);

  std::string key_;
  std::vector<size_t> counters_;
  std::vector<Source> sources_;
  uint64_t form_ = 0;  // of the options for which sources_ are known; 0: none
  bool is_stale_ = false;
  bool is_lost_ = false;  // its numbers once differed from the computed ones: its host code runs at every replay
  int64_t learned_ = 0;
  int64_t replays_ = 0;
};

}  // namespace stepc
