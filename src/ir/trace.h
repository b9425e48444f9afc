// Trace: what one training step did, as plain data: the ATen calls in order, the storages they touched with every
// alias, and every allocation. It owns no tensor and no memory; replaying it reproduces the step bit for bit.
//
//   external   storage s0 is owned by the program: a parameter, a batch tensor ...; found again by (owner, key) each
//   call made       storage s2 is allocated by a call of the step value      a typed, strided window on a storage:
//   several values on one storage are aliases call       ATen operator with arguments (values or constants) and results
//   (values)
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "ir/dtype.h"

namespace stepc {

using StorageId = Id<struct StorageTag>;
using ValueId = Id<struct ValueTag>;
using CallId = Id<struct CallTag>;

enum class Phase : uint8_t { kForward, kBackward, kUpdate };
std::string_view name_of(Phase phase);

// Who holds a storage that the step did not make.
enum class Owner : uint8_t { kParameter, kGradient, kBuffer, kOptimizerState, kBatch, kCaptured };
std::string_view name_of(Owner owner);

// A strided window on a storage. Offset and strides count elements.
struct Value {
  StorageId storage;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  bool conj = false;
  bool neg = false;
  bool operator==(const Value&) const = default;
};

// Elements between the first and one past the last element that the window reaches, counted from its storage's start.
int64_t extent_of(const Value& value);
bool is_contiguous(const Value& value);

struct Storage {
  uint64_t bytes = 0;
  bool external = false;
  bool escapes = false;  // made by the step and kept by the program after it: a return value, a gradient
  bool operator==(const Storage&) const = default;
};

// The program's own tensor: re-resolved at each call by owner and key, never held.
struct External {
  Owner owner = Owner::kCaptured;
  std::string key;
  ValueId value;
  bool operator==(const External&) const = default;
};

// A constant of an ATen enumeration or device, spelled as PyTorch spells it: dtype "bf16", device "cpu", layout
// "strided".
struct Symbol {
  enum class Kind : uint8_t { kDType, kDevice, kLayout, kMemoryFormat };
  Kind kind = Kind::kDType;
  std::string text;
  bool operator==(const Symbol&) const = default;
};

// A number that arrived as a 0-dim tensor without owner ("wrapped number"): it takes part in type promotion as a
// scalar.
struct WrappedNumber {
  std::variant<bool, int64_t, double, std::complex<double>> number;
  bool operator==(const WrappedNumber&) const = default;
};

// An argument or result. An invalid ValueId stands for an undefined tensor.
using Arg = std::variant<std::monostate, bool, int64_t, double, std::complex<double>, std::string, std::vector<int64_t>,
                         std::vector<double>, std::vector<bool>, Symbol, WrappedNumber, ValueId, std::vector<ValueId>>;

struct Call {
  std::string op;  // "aten::add_.Tensor": schema name and overload
  std::vector<Arg> args;
  std::vector<Arg> results;
  std::vector<ValueId> writes;  // arguments whose memory the call changes
  Phase phase = Phase::kForward;
  std::string module;  // "model.layers.0.mlp": from a module scope, a parameter's name or the forward call's path
  bool operator==(const Call&) const = default;
};

// Memory that a call took from the allocator: its results and the workspaces inside its kernel. Times are ticks of the
// recording's event clock (one tick an allocation, a free or a call's end). `last` is exclusive.
struct Allocation {
  CallId call;
  uint64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
  StorageId storage;  // invalid: a workspace
  bool kept = false;  // outlives the step: replay takes it from the system, never from the arena
  bool operator==(const Allocation&) const = default;
};

// What one intra-op worker thread needs while `call` runs; every worker gets a slab of this size.
struct WorkerScratch {
  CallId call;
  uint64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const WorkerScratch&) const = default;
};

// What became of a parameter's gradient in the step. Invalid: none is left.
struct GradientOut {
  std::string key;
  ValueId value;
  bool operator==(const GradientOut&) const = default;
};

struct Trace {
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<External> externals;
  std::vector<Call> calls;
  std::vector<Allocation> allocations;  // in the order in which each call made them
  std::vector<WorkerScratch> scratch;   // by call
  std::vector<ValueId> outputs;         // what the step returned
  std::vector<GradientOut> gradients;
  int64_t ticks = 0;
  bool operator==(const Trace&) const = default;
};

// Calls f(ValueId) for every defined value among `args`.
template <class F>
void for_each_value(const std::vector<Arg>& args, F&& f) {
  for (const Arg& arg : args) {
    if (const auto* value = std::get_if<ValueId>(&arg)) {
      if (value->valid()) f(*value);
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (ValueId element : *list)
        if (element.valid()) f(element);
    }
  }
}

// True for a call that only makes windows on existing storages: replay has nothing to do for it.
bool is_view(const Trace& trace, const Call& call);

// Throws InternalError naming the first promise that `trace` breaks: ids in range, windows inside their storage, values
// defined before use, allocations inside the clock, one external a key.
void verify(const Trace& trace);

// One sentence on the first difference that matters for replay (worker scratch and allocation clocks do not), empty if
// the two are the same step.
std::string first_difference(const Trace& a, const Trace& b);

// The text form; parse_trace(to_text(t)) == t. parse_trace throws UserError with the line number.
std::string to_text(const Trace& trace);
Trace parse_trace(std::string_view text);

}  // namespace stepc
