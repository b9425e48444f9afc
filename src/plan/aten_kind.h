// What the time of a call depends on, for its price.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/op_def.h"
#include "schedule/schedule.h"

namespace stepc {

// What an ATen call's time depends on; kElementwise: on its streams.
enum class AtenKind : uint8_t {
  kElementwise,
  kMatmul,
  kAttention,
  kAttentionBackward,
  kConvolution,
  kConvolutionBackward,
  kReduction,
  kNorm,
  kPooling,
  kGather,
  kScatter,
  kDraw,
  kRoot,
  kLoss,  // a linear layer with its cross-entropy
};

// "aten::mm" for "aten::mm.out".
std::string_view base_name(std::string_view op);
AtenKind kind_of_row(const OpDef& row);
AtenKind kind_of_call(std::string_view op);
AtenKind kind_of(const Instruction& instruction);

}  // namespace stepc
