#include "schedule/shared_memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "ir/graph.h"

namespace stepc {

std::vector<SharedMemory> shared_memories(const Trace& trace, std::span<const ValueId> handed_out) {
  const auto value = [&](size_t i) -> const Value& { return trace.values[handed_out[i].index()]; };
  std::map<std::tuple<StorageId, DType, bool, bool>, std::vector<size_t>> tensors_of;
  for (size_t i = 0; i < handed_out.size(); ++i)
    if (handed_out[i].valid() && !trace.storages[value(i).storage.index()].external)
      tensors_of[{value(i).storage, value(i).dtype, value(i).conj, value(i).neg}].push_back(i);
  std::vector<SharedMemory> out;
  for (const auto& [key, tensors] : tensors_of) {
    if (tensors.size() < 2) continue;
    int64_t begin = value(tensors.front()).offset, end = 0;
    for (size_t i : tensors) {
      begin = std::min(begin, value(i).offset);
      end = std::max(end, extent_of(value(i)));
    }
    SharedMemory memory;
    memory.elements = end - begin;
    const auto holder = std::ranges::find_if(tensors, [&](size_t i) {
      return value(i).offset == begin && element_count(value(i).sizes) == memory.elements &&
             fills_block(value(i).sizes, value(i).strides);
    });
    if (holder != tensors.end()) memory.holder = *holder;
    for (size_t i : tensors)
      if (memory.holder != i) memory.windows.push_back({i, value(i).offset - begin});
    out.push_back(std::move(memory));
  }
  return out;
}

}  // namespace stepc
