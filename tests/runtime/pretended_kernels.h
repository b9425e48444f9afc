// The MicroKernels of any machine, to plan for it on this one. What runs them throws.
#pragma once

#include <stdexcept>

#include "runtime/micro_kernels.h"

namespace stepc {

template <class T>
void pretended_brgemm(const blocked::BlockSize&, const T*, int64_t, const T*, int64_t, float*, int64_t, bool) {
  throw std::logic_error("a pretended micro-kernel was run");
}

inline blocked::MicroKernels pretended(const Features& features) {
  blocked::MicroKernels kernels{.avx512 = features.avx512, .intel = features.intel};
  if (features.bf16) kernels.bf16 = pretended_brgemm<blocked::Bf16>;
  if (features.f32) kernels.f32 = pretended_brgemm<float>;
  return kernels;
}

}  // namespace stepc
