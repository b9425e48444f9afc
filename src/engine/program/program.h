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

// Every number that an event's host code may pass to its calls, computed from its options and a step count.
struct HostNumbers {
  uint64_t form = 0;  // of its options; with options of another form it may make other calls
  std::vector<double> numbers;
};

class Program {
 public:
  virtual ~Program() = default;

  // Looks at the program's structure: modules, parameters, optimizers. keys() and generators() return the state of the
  // last refresh. Called once before every step, so it must be quick while nothing changes.
  virtual void refresh() = 0;
  // All keys but the batch's. Their order stays the same from step to step while the structure stays. Each parameter
  // has a gradient of the same key.
  virtual const std::vector<OwnedKey>& keys() const = 0;
  // Appends the present tensor of each key; undefined if there is none.
  virtual void append_tensors(std::vector<at::Tensor>& out) const = 0;
  virtual std::vector<std::pair<std::string, at::Generator>> generators() const { return {}; }
  // generators(), and the default generators of the devices on which the program's tensors lie.
  std::vector<std::pair<std::string, at::Generator>> all_generators() const {
    auto out = generators();
    if (!has_any_device_hook()) return out;
    std::vector<at::Tensor> tensors;
    append_tensors(tensors);
    std::ranges::move(device_generators(tensors), std::back_inserter(out));
    return out;
  }

  // Changes when keys() change.
  virtual uint64_t structure() const = 0;

  // Appends, in compact form, host values that decide what the step does and that no recording shows: training flags,
  // structure.
  virtual void append_host_state(std::string& out) const = 0;
  // The same in words, for log lines. Text after the prefix kPythonValue continues as a sentence.
  static constexpr std::string_view kPythonValue = "python: ";
  virtual void describe(std::map<std::string, std::string>&) const {}

  // Gives a slot of the program another tensor. Never called for gradients.
  virtual bool can_rebind(Owner) const { return false; }
  virtual void rebind(Owner, const std::string&, const at::Tensor&) {}

  // Runs the host code of an event: an optimizer's step().
  virtual void run_event(const std::string& key) = 0;
  // The event's numbers when its step count becomes `count`, if they are known without its host code; the event then
  // needs nothing else.
  virtual std::optional<HostNumbers> host_numbers(const std::string& /*key*/, double /*count*/) { return std::nullopt; }
  // Runs the event's host code with other options of the same form and returns its numbers.
  virtual std::optional<HostNumbers> run_probe(const std::string& /*key*/, double /*count*/) { return std::nullopt; }
  // Adds events to a trace that the door cannot mark while the step runs.
  virtual void find_events(Trace&) {}
  // The state that host code keeps outside tensors, so that it may run once more.
  virtual std::shared_ptr<void> save_host_state() = 0;
  virtual void restore_host_state(const std::shared_ptr<void>& state) = 0;

  // The same for everything that host code may change when the step is captured without being run.
  virtual std::shared_ptr<void> save_everything() { return save_host_state(); }
  virtual void restore_everything(const std::shared_ptr<void>& state) { restore_host_state(state); }

  // Makes the state that optimizers would make in their first step, as sizes without memory if it is large, so that the
  // first step is like all others. Returns whether there was any to make. Throws UserError if the first step would
  // still differ.
  virtual bool make_state() { return false; }
  // The value that all elements of such state have; nullopt: the key is no such state.
  virtual std::optional<double> initial_value(const OwnedKey&) const { return std::nullopt; }
  // Drops all state that make_state() made.
  virtual void drop_state() {}

  // Whether the program has hooks on this parameter's gradient.
  virtual bool is_hooked(const at::Tensor& /*parameter*/) const { return false; }

  // Whether a model's files contain the tensor of this key, as they contain parameters and buffers; not if its module
  // leaves it out.
  virtual bool is_of_model(const OwnedKey& key) const {
    return key.owner == Owner::kParameter || key.owner == Owner::kBuffer;
  }
  // Looks for the tensors of those keys that belong to no module and no optimizer. What it finds is among keys() after
  // refresh().
  virtual void adopt(const std::vector<std::string>& /*keys*/) {}

  // Looks for the owners of tensors that outlive the step, for all at once. Returns for each whether it is among keys()
  // or generators() from now on.
  virtual std::vector<bool> explain(const std::vector<Unowned>& unowned) { return std::vector<bool>(unowned.size()); }
  virtual std::string source_line() { return {}; }
  // Why the host code of the step recorded last must run at every call, with file and line: it has effects outside
  // tensors, or reads what cannot be compared. Empty: a replay without the host code does everything that the step
  // does.
  virtual std::string python_reason() const { return {}; }
  // Whether replays leave the host code out as long as everything that it read is unchanged. Checks run it again and
  // show what the watch did not see.
  virtual bool is_watched() const { return false; }
  // Why the host code cannot be watched at all; empty: it can, or there is none to watch.
  virtual std::string why_unwatched() const { return {}; }
  // Whether later recordings look at the calls only: the step was recorded before, so what its code may read and do is
  // known.
  virtual void look_lightly(bool /*lightly*/) {}
  // Switches to traced mode: host code runs at every call, and its reads no longer affect the signature.
  virtual void trace(const std::string& /*why*/) {}
  // The part of the program that no plan can hold, in words; the step then runs eagerly.
  virtual std::string unfit() const { return {}; }
  virtual void settle(bool /*all*/) {}
};

}  // namespace stepc
