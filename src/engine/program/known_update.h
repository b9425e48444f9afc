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
  // Runs host code in the event's stead, without its kernels, as Shadow::run().
  using RunFn = std::function<std::string(const std::function<void()>& host_code, const SupplyFn& supply)>;

  KnownUpdate() = default;
  // `key` is the event's; `counters`: where the tensors that its own calls write stand among the program's.
  KnownUpdate(std::string key, std::vector<size_t> counters) : key_(std::move(key)), counters_(std::move(counters)) {}

  // The event's numbers without its host code, and its counters one further. False: it has to run, through learn(), and
  // nothing has changed. `supply` gets all numbers, and whether each is another one than last time.
  bool replay(Program& program, const std::vector<at::Tensor>& tensors,
              const std::function<void(const HostSupply&, bool is_new)>& supply);
  // Runs it, and once more before where that tells which number is which. Returns what its calls did otherwise than
  // recorded, empty if nothing.
  std::string learn(Program& program, const std::vector<at::Tensor>& tensors, const RunFn& run, const SupplyFn& supply);
  // The next replay runs it, to learn anew.
  void doubt() { form_ = 0; }
  // It has run otherwise: the numbers supplied last are not those of replay() or learn().
  void set_stale() { is_stale_ = true; }

 private:
  struct Source {
    HostSupply supplied;           // last
    std::vector<double> elements;  // of it
    std::vector<int64_t> numbers;  // by element: which of the host numbers, or kConstant
  };

  std::optional<double> count_of(const std::vector<at::Tensor>& tensors) const;
  // What the host code passes with other options; nothing where it does not run with them.
  std::optional<std::vector<HostSupply>> probe(Program& program, const std::vector<at::Tensor>& tensors,
                                               const RunFn& run, HostNumbers& numbers);

  std::string key_;
  std::vector<size_t> counters_;
  std::vector<Source> sources_;
  uint64_t form_ = 0;  // of the options, that sources_ are known for; 0: none
  bool is_stale_ = false;
  bool is_lost_ = false;  // its numbers were others once: its host code runs at every replay
  int64_t learned_ = 0;
  int64_t replays_ = 0;
};

}  // namespace stepc
