// The machines that can be planned for by name, as data with their sources; or one that a Target file describes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost/target.h"

namespace stepc {

// "a100", "h100", "h200", "b200", "gb200": the cards of 80, 80, 141, 180 and 186 GB; "a800", "h800", "h100-96". These
// facts are known of each; none is fitted to a step:
//   data sheets   multiprocessors, shared memory, L2, memory, peak arithmetic (NVIDIA's data sheets and tuning guides)
//   copy rate     nine tenths of the data sheet's memory rate
//   kernels       1 us to start and end, as OpenXLA's cost model of GPUs has it (gpu_performance_model_base.h)
//   matmuls       in bf16, sm_90, by shape: cuBLAS as OpenXLA has measured it (matmul_interpolator_data.h, a batch of b
//                 counted as b times the rows); other cards' as much of the best as an H100's are, of which the best is
//                 known (an A100: 271 TFLOP/s; H100: 794.5, S. Bekman, Machine learning engineering, maximum achievable
//                 matmul FLOPS) or the same part of the data sheet's peak (B200)
//   attention     in bf16, sm_90: cuDNN 9 in Shah et al., FlashAttention-3, 2024, figures 5 and 6 (forward causal,
//                 backward not); an A100: FlashAttention-2's best, Dao, 2023; B200: cuDNN's best, of which
//                 FlashAttention-4's 1,605 TFLOP/s are 1.3 times (together.ai, 2026), backward in an H100's proportion
//   by shape      other cards' matmuls, and those in f32, take as much longer than their arithmetic at the best rate
//                 as an H100's in bf16 do; attention in an H100's proportions
//   in float8     from sm_90 on, at twice the rate of bf16 (data sheets of H100, H200 and HGX B200, without sparsity)
//   in f32        the same parts of the peak without tensor cores, which torch's default does not use for f32;
//                 attention half of that (an estimate: nobody has published it). With `tf32`, as
//                 torch.set_float32_matmul_precision("high") asks for, matmuls at half the rate of bf16 (data sheets)
std::vector<std::string> target_names();

// A name, with or without the memory ("h100", "H100-80"), or a Target file's path. Throws UserError for an unknown
// target, with the known ones; for V100, for which torch has no kernels; and for a file that is no Target. A file has
// its own rates: `tf32` counts only for names.
Target named_target(const std::string& name_or_path, bool tf32 = false);

// Of a card by what its driver says of it ("NVIDIA H100 80GB HBM3", all bytes of its memory, its multiprocessors).
// nullopt for one that is none of these: PCIe and NVL cards have other rates.
std::optional<Target> target_of_card(const std::string& name, uint64_t memory_bytes, int64_t multiprocessors,
                                     bool tf32 = false);

}  // namespace stepc
