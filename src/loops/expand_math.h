// Elementary functions of f32 as polynomials in the loop IR, so that every code generator prints the same ones, and
// products that are added as kFma. What has no polynomial (pow, tan, atan2, fmod, and all of f64) stays as it is.
#pragma once

#include "loops/loop_program.h"

namespace stepc {

// Bounds in units of the last place, measured by tests/codegen/math_test.cpp over arguments of all sizes: exp, log and
// rsqrt 1.5; log1p, expm1, tanh, erf 2; sin and cos 2 up to 2^27, beyond it some value from -1 to 1. Special values are
// as in C.
LoopProgram expand_math(const LoopProgram& program);

}  // namespace stepc
