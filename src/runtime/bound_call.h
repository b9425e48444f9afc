// One instruction's call with everything resolved: the operator, its arguments ready to be pushed, its results. Private
// to runtime/.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ir/trace.h"
#include "runtime/bound_values.h"

namespace stepc {

// An argument, ready to be pushed.
struct BoundArg {
  enum class Kind : uint8_t { kConstant, kValue, kList, kOptionalList, kRead, kGenerator };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  ValueId value;
  std::vector<ValueId> list;
  bool lasting = false;  // a list of arena and bound values only: built once for each binding
  c10::IValue built;
  uint64_t built_for = 0;
  ReadNumber number;  // kRead: read.index() is the place among the reads, not the call
  size_t generator = 0;
};

// A result that defines a storage: where it must lie, or that it is handed out.
struct BoundResult {
  size_t position = 0;   // among the call's results
  ssize_t element = -1;  // within a list result
  ValueId value;
};

struct BoundCall {
  c10::OperatorHandle op;
  std::vector<BoundArg> args;
  std::vector<BoundResult> results;
  ssize_t read = -1;          // index among the trace's reads
  std::vector<size_t> saves;  // generator states to keep after the call
};

// `read_of` gives a call's place among the trace's reads; `made` says which storages exist already and is updated.
BoundCall bind_call(const Trace& trace, const Call& call, const BoundValues& values,
                    const std::vector<ssize_t>& read_of, std::vector<bool>& made);

// A list argument's tensors as they are now.
c10::IValue build_list(const BoundArg& arg, const BoundValues& values);

// What `read` gave, as the kind of number that is passed on.
c10::IValue pass_on(const ReadNumber& number, const c10::IValue& read);

// A number of a trace from what a host read left on the stack.
Arg arg_of(const c10::IValue& number);

}  // namespace stepc
