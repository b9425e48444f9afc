// Elementary functions of f32 as polynomials in the loop IR, so that every code generator prints the same ones, and
// products that are added as kFma. What has no polynomial (pow, tan, atan2, fmod, and all of f64) stays as it is.
#pragma once

#include "loops/loop_program.h"

namespace stepc {

// Bounds in units of the last place, over all finite arguments (tests/codegen/math_test.cpp measures them); special
// values as in C: exp 1, log 1, log1p 2, expm1 2, sin and cos 2, tanh 3, erf 3, rsqrt 2.
LoopProgram expand_math(const LoopProgram& program);

}  // namespace stepc
