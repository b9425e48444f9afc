// Writes what elementwise and random ops compute for one element as instructions of a phase.
#pragma once

#include <vector>

#include "loops/lower/phase_writer.h"
#include "ops/op_def.h"

namespace stepc {

// The body of an elementwise op, a cast included; `inputs` are the operands' types. The result has the value type of
// `result`; bf16 and f16 are rounded to only by a cast.
PhaseWriter::Value write_body(PhaseWriter& w, const OpDef& op, const std::vector<TensorType>& inputs,
                              const Attrs& attrs, const std::vector<PhaseWriter::Value>& arguments, DType result);

// The draw of element `index` (i64) of a random op, in f32 or f64.
PhaseWriter::Value write_draw(PhaseWriter& w, bool normal, PhaseWriter::Value seed, PhaseWriter::Value step,
                              int64_t stream, PhaseWriter::Value index, DType result);

}  // namespace stepc
