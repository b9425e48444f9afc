// A Trace run with memory semantics: storages are bytes, values are windows on them, in-place calls write where they
// point. Knows the few calls that random programs are made of; it is what functionalise() is held to, and shares
// nothing with it.
#pragma once

#include <map>
#include <vector>

#include "interp/array.h"
#include "ir/trace.h"

namespace stepc {

using Bytes = std::vector<uint8_t>;

// A strided window of some bytes, read out densely.
Array read_window(const Bytes& bytes, const TensorType& type, const Shape& strides, int64_t offset);
void write_window(Bytes& bytes, const Array& array, const Shape& strides, int64_t offset);

struct TraceMemory {
  std::vector<Bytes> storages;  // after the step
  std::vector<Array> outputs;   // what it returned
};
// `external` holds the bytes of the external storages before the step.
TraceMemory run_with_memory(const Trace& trace, const std::map<StorageId, Bytes>& external);

}  // namespace stepc
