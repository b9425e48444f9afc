// Runs ATen calls without running their kernels: results have the sizes, strides, element type and aliases that the CPU
// kernel would give them, on virtual storages (aten/virtual_memory.h), and large memory is never touched. Stands where
// op.redispatchBoxed() stands: below autograd and autocast.
//
//   views, changes of a tensor's window       really run: they move no data
//   calls on known values (known_values.h)    really run, so that masks, positions and step counters are right
//   factories of moderate size                really run
//   calls that change their arguments         return them; what they wrote is unknown from now on
//   everything else                           results from a shape kernel (shape_kernels.h)
//
// Reading a value that was never computed on the host throws UserError that names the operator, or gives a number that
// no other read gives: recordings that agree (ir/agree.h) show then where it goes, and refuse it where it decides
// anything. Or it gives the numbers that it was told: what the step does where it reads those. One object serves one
// capture, on one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "capture/virtual/known_values.h"
#include "capture/virtual/operator_traits.h"
#include "ir/trace.h"

namespace stepc {

class VirtualKernels {
 public:
  // kStandIn: of floats; others throw.
  enum class Reads : uint8_t { kThrow, kStandIn };
  explicit VirtualKernels(Reads reads = Reads::kThrow) : reads_(reads) {}
  // `numbers`: what the first calls of aten::_local_scalar_dense of a recording give where the value was never
  // computed; beyond them, and where one is std::monostate, a number stands in, for a truth `true`.
  explicit VirtualKernels(std::vector<Arg> numbers) : reads_(Reads::kStandIn), numbers_(std::move(numbers)) {}
  // Before each recording.
  void begin_recording() { reads_so_far_ = 0; }

  // A call whose arguments are on the stack; leaves its results there. `below` as for redispatchBoxed().
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);

  // What the program says about its own tensors: a batch given for real is known whatever its size; parameters are not,
  // however small.
  void mark_known(const at::Tensor& tensor) { values_.mark(tensor, true); }
  void mark_unknown(const at::Tensor& tensor) { values_.mark(tensor, false); }
  bool is_known(const at::Tensor& tensor) { return values_.is_known(tensor); }

  // Puts back the program's tensors and generators that calls really changed. Idempotent.
  void restore() { values_.restore(); }

 private:
  const OperatorTraits& traits(const c10::OperatorHandle& op);
  bool all_known(c10::ArrayRef<c10::IValue> arguments);
  void execute(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
               torch::jit::Stack* stack);
  void fill(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
            torch::jit::Stack* stack);
  void skip(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
            torch::jit::Stack* stack);
  static void shape(const OperatorTraits& t, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void draw(c10::ArrayRef<c10::IValue> arguments, bool token);
  std::optional<Arg> number_for(at::ScalarType type);
  static void grow(const torch::jit::Stack& stack, size_t arguments);

  Reads reads_;
  std::optional<std::vector<Arg>> numbers_;  // that are given; none: floats stand in alone
  size_t reads_so_far_ = 0;                  // in the recording at hand
  int64_t stand_ins_ = 0;
  KnownValues values_;
  std::unordered_map<const c10::FunctionSchema*, OperatorTraits> traits_;
};

}  // namespace stepc
