// Constants between ATen's IValue and the Trace's Arg, and dtypes between c10 and ir. Tensors are not converted here:
// capture/ turns them into values, runtime/ turns values into tensors.
#pragma once

#include <optional>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include "ir/trace.h"

namespace stepc {

// Throws UserError for element types that a Trace does not hold (quantised, bits).
DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(DType dtype);

// The constant that `value` is, for an argument declared as `type`; nullopt for what a Trace cannot hold (generators,
// streams, objects), and for tensors.
std::optional<Arg> constant_from_ivalue(const c10::IValue& value, const c10::Argument& argument);

// The inverse, for every Arg that is no ValueId. Throws UserError when the argument's declared type does not fit.
c10::IValue constant_to_ivalue(const Arg& arg, const c10::Argument& argument);

// The number held by a 0-dim CPU tensor (nullopt for element types that a number cannot have), and back to a tensor
// that promotes as a number does.
std::optional<WrappedNumber> wrapped_number_of(const at::Tensor& tensor);
at::Tensor tensor_of(const WrappedNumber& number);

}  // namespace stepc
