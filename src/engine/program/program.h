// The program around a step, behind one interface for every door: its tensors with owners and keys, its random
// generators, and the host code inside the step (optimizers). engine/program/module_program.h implements it for C++,
// python/ for Python.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "aten/device_hook.h"
#include "aten/generator_snapshot.h"
#include "capture/recorder.h"
#include "ir/trace.h"

namespace stepc {

struct OwnedKey {
  Owner owner = Owner::kCaptured;
  std::string key;
  bool operator==(const OwnedKey&) const = default;
};

// What an event's host code computes of its options and a step count: every number that it may pass to its calls.
struct HostNumbers {
  uint64_t form = 0;  // of its options: with those of another one it may make other calls
  std::vector<double> numbers;
};

class Program {
 public:
  virtual ~Program() = default;

  // Looks at the program's structure: modules, parameters, optimizers. What keys() and generators() return is of the
  // last refresh. Called once before every step, so it must be quick while nothing changes.
  virtual void refresh() = 0;
  // All but the batch. The same order from step to step while the structure stays; each parameter has a gradient of
  // the same key.
  virtual const std::vector<OwnedKey>& keys() const = 0;
  // One tensor for each key, as it is now; undefined where there is none. Appends.
  virtual void append_tensors(std::vector<at::Tensor>& out) const = 0;
  virtual std::vector<std::pair<std::string, at::Generator>> generators() const { return {}; }
  // Those, and the default ones of the devices that its tensors lie on.
  std::vector<std::pair<std::string, at::Generator>> all_generators() const {
    auto out = generators();
    if (!has_any_device_hook()) return out;
    std::vector<at::Tensor> tensors;
    append_tensors(tensors);
    std::ranges::move(device_generators(tensors), std::back_inserter(out));
    return out;
  }

  // Differs when keys() do.
  virtual uint64_t structure() const = 0;

  // Host values that decide what the step does and that no recording shows: training flags, structure. Compact.
  virtual void append_host_state(std::string& out) const = 0;
  // The same in words, for log lines. What begins with kPythonValue reads on as a sentence.
  static constexpr std::string_view kPythonValue = "python: ";
  virtual void describe(std::map<std::string, std::string>&) const {}

  // Gives a slot of the program another tensor; gradients are not asked for.
  virtual bool can_rebind(Owner) const { return false; }
  virtual void rebind(Owner, const std::string&, const at::Tensor&) {}

  // Runs the host code of an event: an optimizer's step().
  virtual void run_event(const std::string& key) = 0;
  // Its numbers, as its step count comes to `count`, where they are known without that; nothing else has to be done
  // then.
  virtual std::optional<HostNumbers> host_numbers(const std::string& /*key*/, double /*count*/) { return std::nullopt; }
  // Runs that host code with other options of the same form, and returns its numbers.
  virtual std::optional<HostNumbers> run_probe(const std::string& /*key*/, double /*count*/) { return std::nullopt; }
  // Adds to a trace the events that the door cannot mark while the step runs.
  virtual void find_events(Trace&) {}
  // The state that host code has outside of tensors, so that it may run once more.
  virtual std::shared_ptr<void> save_host_state() = 0;
  virtual void restore_host_state(const std::shared_ptr<void>& state) = 0;

  // The same of all that host code may change when the step is captured without being run.
  virtual std::shared_ptr<void> save_everything() { return save_host_state(); }
  virtual void restore_everything(const std::shared_ptr<void>& state) { restore_host_state(state); }

  // Makes the state that optimizers would make in their first step, as sizes without memory where it is large, so that
  // the first step is like all others. Whether there was any to make; UserError where the first one would be another.
  virtual bool make_state() { return false; }
  // What such state holds in all of its elements; nullopt: it is none.
  virtual std::optional<double> initial_value(const OwnedKey&) const { return std::nullopt; }
  // Takes all of that back.
  virtual void drop_state() {}

  // Whether hooks of the program run on this parameter's gradient.
  virtual bool is_hooked(const at::Tensor& /*parameter*/) const { return false; }

  // Whether a model's files have it, as they have parameters and buffers: not what its module itself leaves out.
  virtual bool is_of_model(const OwnedKey& key) const {
    return key.owner == Owner::kParameter || key.owner == Owner::kBuffer;
  }
  // Looks for those of these keys that are no module's and no optimizer's; what it finds is among keys() after
  // refresh().
  virtual void adopt(const std::vector<std::string>& /*keys*/) {}

  // Looks for the owners of what outlives the step, for all at once: whether each is among keys() or generators() from
  // now on.
  virtual std::vector<bool> explain(const std::vector<Unowned>& unowned) { return std::vector<bool>(unowned.size()); }
  virtual std::string source_line() { return {}; }
  // Why the host code of the step recorded last has to run at every call, with file and line: it has effects outside of
  // tensors, or reads what cannot be compared. Empty: a replay without it does all that it does.
  virtual std::string python_reason() const { return {}; }
  // Whether its host code is left out of replays as long as all that it read is as it was: what has not been seen of it
  // shows where it runs again.
  virtual bool is_watched() const { return false; }
  // Why its host code cannot be watched at all; empty: it can be, or there is none that would have to be.
  virtual std::string why_unwatched() const { return {}; }
  // Whether recordings to come look at no more than the calls: the step was recorded before, and what its code may read
  // and do is known.
  virtual void look_lightly(bool /*lightly*/) {}
  // Switches to traced mode: its host code runs at every call, and what it reads no longer affects the signature.
  virtual void trace(const std::string& /*why*/) {}
  // What of it no plan holds, in words; the step runs eagerly then.
  virtual std::string unfit() const { return {}; }
  virtual void settle(bool /*all*/) {}
};

}  // namespace stepc
