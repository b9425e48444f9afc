// Which micro-kernels this machine has, as plain data: the answer of one probe, passed to every blocked kernel. What is
// missing is replaced by plain loops, so the kernels are right everywhere and fast where the answers are yes.
#pragma once

#include <string>

namespace stepc::blocked {

struct MicroKernels {
  bool bf16 = false;    // LibTorch's bf16 x bf16 -> f32 block product, right operand in pairs of rows
  bool f32 = false;     // its f32 block product
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL and BF16: row work (packing, softmax, epilogues)
  bool intel = false;   // the CPU that LibTorch's own f32 products (MKL) are written for

  bool operator==(const MicroKernels&) const = default;
};

// Runs each micro-kernel once, on an odd and on an even block, and holds the result against a plain loop. A kernel that
// throws or is wrong does not exist. Reads no timer.
MicroKernels probe_micro_kernels();

// "bf16, f32, avx512" or "none".
std::string to_text(const MicroKernels& kernels);

}  // namespace stepc::blocked
