// Trace: what one training step did, as plain data: the ATen calls in order, the storages they touched with every
// alias, and every allocation. It owns no tensor and no memory; replaying it reproduces the step bit for bit.
//
//   external storage   owned by the program: a parameter, a batch tensor ...; found again by (owner, key) at each call
//   made storage       allocated by a call of the step
//   value              a typed, strided window on a storage; several values on one storage are aliases
//   device             beside the host's memory, that of one device may be used
//   call               an ATen operator with arguments (values or constants) and results (values)
#pragma once

#include <complex>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "ir/call_rule.h"
#include "ir/dtype.h"

namespace stepc {

using StorageId = Id<struct StorageTag>;
using ValueId = Id<struct ValueTag>;
using CallId = Id<struct CallTag>;
using GeneratorId = Id<struct GeneratorTag>;
using StateId = Id<struct StateTag>;

enum class Phase : uint8_t { kForward, kBackward, kUpdate };
std::string_view name_of(Phase phase);

// Who holds a storage that the step did not make.
// kIncoming: what the program gives the step at a pause. kConstant: nobody; the tensor was made from host data inside
// the step and its bytes are in Trace::constants. kHost: the same, with other data at every step; the bytes are the
// last.
enum class Owner : uint8_t {
  kParameter,
  kGradient,
  kBuffer,
  kOptimizerState,
  kBatch,
  kCaptured,
  kConstant,
  kIncoming,
  kHost
};
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

// Which memory something lies in: the host's, or that of the step's one device.
enum class Space : uint8_t { kHost, kDevice };

struct Storage {
  uint64_t bytes = 0;
  bool external = false;
  bool escapes = false;  // made by the step and kept by the program after it: a return value, a gradient
  Space space = Space::kHost;
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

// A number that an earlier call read from a tensor (`.item()`): replay passes on what it reads itself, as the kind of
// number that was passed here.
struct ReadNumber {
  enum class Kind : uint8_t { kBool, kInt, kDouble };
  CallId read;
  Kind kind = Kind::kDouble;
  bool wrapped = false;  // arrives as a 0-dim tensor, see WrappedNumber
  bool operator==(const ReadNumber&) const = default;
};

// A random generator, by its place in Trace::generators.
struct GeneratorArg {
  GeneratorId generator;
  bool operator==(const GeneratorArg&) const = default;
};

// An argument or result. An invalid ValueId stands for an undefined tensor.
using Arg = std::variant<std::monostate, bool, int64_t, double, std::complex<double>, std::string, std::vector<int64_t>,
                         std::vector<double>, std::vector<bool>, Symbol, WrappedNumber, ValueId, std::vector<ValueId>,
                         ReadNumber, GeneratorArg>;

struct Call {
  std::string op;  // "aten::add_.Tensor": schema name and overload
  std::vector<Arg> args;
  std::vector<Arg> results;
  std::vector<ValueId> writes;  // arguments whose memory the call changes
  Phase phase = Phase::kForward;
  std::string module;  // "model.layers.0.mlp": from a module scope, a parameter's name or the forward call's path
  // What the program says of an operator of its own: it computes its results from its arguments alone.
  std::optional<CallRule> rule = {};
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
  Space space = Space::kHost;
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

// What became of a slot of the program (a gradient, an attribute) that the step gave another tensor. Invalid: none is
// left there.
struct Rebinding {
  Owner owner = Owner::kGradient;
  std::string key;
  ValueId value;
  bool operator==(const Rebinding&) const = default;
};

// A call that gave the host a number, or made a tensor whose shape depends on data: the count of its elements is the
// number then. A guard's number decided what the step did next: replay must read the same, or this trace is not the
// step's. Or, without a number, a call that raises by what it finds, whose kernel reads its operands for the host, or
// of which nothing is known: only in the host's own run of the step, as an own call of an event, is it what it was.
struct HostRead {
  CallId call;
  bool guard = false;
  bool decides = false;  // the program was seen to compare the number, whatever else it does with it
  std::string source;    // the line of the program that read it, "model.py:12", empty if unknown
  bool operator==(const HostRead&) const = default;
};

// The content of a kConstant external, by the external's key.
struct Constant {
  std::string key;
  std::string bytes;
  bool operator==(const Constant&) const = default;
};

// A random generator's state at some point of the step: what it was when the step began, when it went on after a pause,
// after a call, or a constant (a seed set inside the step).
struct GeneratorState {
  enum class Kind : uint8_t { kInitial, kResumed, kAfterCall, kConstant };
  GeneratorId generator;
  Kind kind = Kind::kInitial;
  CallId call;        // kAfterCall
  std::string bytes;  // kConstant
  bool operator==(const GeneratorState&) const = default;
};

// Host code gave a generator an earlier state back: replay does so before `before` (calls.size(): at the end).
struct GeneratorLoad {
  CallId before;
  StateId state;
  bool operator==(const GeneratorLoad&) const = default;
};

// Host code of the program that makes calls [begin, end) and has state of its own: an optimizer's step(), a learning
// rate schedule.
//   kShadow  before a replay it runs without kernels: only `own_calls` (step counters and what follows from them on
//            the host) run for real, then and not in the replay; the numbers it passes replace the recorded ones
//   kEager   replay gives it the gradients and lets it run as it is; none of its calls are replayed
//   kPause   makes no calls: the program gets `outputs` and comes back later, with kIncoming tensors
//   kRead    makes no calls: the program gets the number that the call before it read from `outputs`, its only one, and
//            goes on with numbers that may follow from it. Or makes one own call itself: `outputs` are the tensors that
//            this is given, in order, and what it makes are externals of the host's
struct HostEvent {
  enum class Kind : uint8_t { kShadow, kEager, kPause, kRead };
  Kind kind = Kind::kShadow;
  std::string key;
  CallId begin;
  CallId end;
  std::vector<CallId> own_calls;
  std::vector<Rebinding> gradients;  // the gradients that it finds
  std::vector<ValueId> outputs;      // kPause, kRead
  bool operator==(const HostEvent&) const = default;
};

struct Trace {
  std::string device;  // whose memory the step uses beside the host's, "cuda:0"; empty: none's
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<External> externals;
  std::vector<Constant> constants;
  std::vector<std::string> generators;  // keys; 0 is the process's default generator
  std::vector<GeneratorState> states;
  std::vector<Call> calls;
  std::vector<HostRead> reads;          // in the order of calls
  std::vector<GeneratorLoad> loads;     // in the order of calls
  std::vector<HostEvent> events;        // in the order of calls, not nested
  std::vector<Allocation> allocations;  // in the order in which each call made them
  std::vector<WorkerScratch> scratch;   // by call
  std::vector<ValueId> outputs;         // tensors that the step returned
  std::vector<Arg> numbers;             // numbers that the step returned: constants and ReadNumbers
  std::vector<Rebinding> rebindings;
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

// Whether a number that the step reads before the event decides if it is this step at all: replay hands on the event's
// numbers, or runs its host code, only behind that guard.
bool is_behind_guard(const Trace& trace, const HostEvent& event);

// True for a call that only makes windows on existing storages: replay has nothing to do for it.
bool is_view(const Trace& trace, const Call& call);

// Throws InternalError naming the first promise that `trace` breaks: ids in range, windows inside their storage, values
// defined before use, allocations inside the clock, one external a key.
void verify(const Trace& trace);

// One sentence on the first difference that matters for replay (scratch memory and allocation clocks do not), empty if
// the two are the same step.
std::string first_difference(const Trace& a, const Trace& b);

// The text form; parse_trace(to_text(t)) == t. parse_trace throws UserError with the line number.
std::string to_text(const Trace& trace);
Trace parse_trace(std::string_view text);

}  // namespace stepc
