#include "interp/trace_memory.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace stepc {

Array read_window(const Bytes& bytes, const TensorType& type, const Shape& strides, int64_t offset) {
  const int64_t size = size_of(type.dtype);
  Bytes dense;
  for_each_index(type.shape, [&](const Shape& index, int64_t) {
    const int64_t at = (offset + dot(index, strides)) * size;
    INTERNAL_CHECK_LE(at + size, static_cast<int64_t>(bytes.size()));
    dense.insert(dense.end(), bytes.begin() + at, bytes.begin() + at + size);
  });
  return from_bytes(type, dense);
}

void write_window(Bytes& bytes, const Array& array, const Shape& strides, int64_t offset) {
  const int64_t size = size_of(array.type.dtype);
  const Bytes dense = to_bytes(array);
  for_each_index(array.type.shape, [&](const Shape& index, int64_t i) {
    const int64_t at = (offset + dot(index, strides)) * size;
    INTERNAL_CHECK_LE(at + size, static_cast<int64_t>(bytes.size()));
    std::copy_n(dense.begin() + i * size, size, bytes.begin() + at);
  });
}

namespace {

class MemoryRun {
 public:
  MemoryRun(const Trace& trace, const std::map<StorageId, Bytes>& external) : trace_(trace) {
    for (size_t s = 0; s < trace.storages.size(); ++s) {
      memory_.storages.emplace_back(trace.storages[s].bytes, uint8_t{0});
      if (trace.storages[s].external) memory_.storages[s] = external.at(StorageId(s));
    }
  }

  TraceMemory run() {
    for (const Call& call : trace_.calls)
      if (!is_view(trace_, call)) run_call(call);
    for (ValueId output : trace_.outputs) memory_.outputs.push_back(output.valid() ? read(output) : Array());
    return std::move(memory_);
  }

 private:
  Array read(ValueId id) const {
    const Value& value = trace_.values[id.index()];
    return read_window(memory_.storages[value.storage.index()], {value.dtype, value.sizes}, value.strides,
                       value.offset);
  }
  void write(ValueId id, const Array& array) {
    const Value& value = trace_.values[id.index()];
    write_window(memory_.storages[value.storage.index()], array, value.strides, value.offset);
  }

  static Array zeros(const Value& value) { return Array({value.dtype, value.sizes}); }

  // The argument with the shape and dtype of the result: tensors repeat along missing and size-1 dimensions.
  Array operand(const Arg& arg, const Value& like) const {
    Array out = zeros(like);
    const auto* id = std::get_if<ValueId>(&arg);
    if (id == nullptr) {
      for (int64_t i = 0; i < out.count(); ++i) {
        if (const auto* integer = std::get_if<int64_t>(&arg))
          out.set(i, *integer);
        else
          out.set(i, std::get<double>(arg));
      }
      return out;
    }
    const Array x = read(*id);
    const size_t missing = like.sizes.size() - x.type.shape.size();
    const Shape own = contiguous_strides(x.type.shape);
    for_each_index(like.sizes, [&](const Shape& index, int64_t i) {
      int64_t from = 0;
      for (size_t d = 0; d < own.size(); ++d)
        if (x.type.shape[d] != 1) from += index[d + missing] * own[d];
      if (x.is_real())
        out.set(i, x.real(from));
      else
        out.set(i, x.integer(from));
    });
    return out;
  }

  template <class F>
  Array pointwise(const Call& call, const Value& like, F&& f) const {
    std::vector<Array> operands;
    for (size_t i = 0; i < std::min<size_t>(call.args.size(), 2); ++i) operands.push_back(operand(call.args[i], like));
    Array out = zeros(like);
    for (int64_t i = 0; i < out.count(); ++i) {
      if (out.is_real())
        out.set(i, f(operands[0].real(i), operands.back().real(i)));
      else
        out.set(i, f(operands[0].integer(i), operands.back().integer(i)));
    }
    return out;
  }

  Array sum(const Call& call, const Value& like) const {
    const Array x = read(std::get<ValueId>(call.args[0]));
    const Shape& dims = std::get<Shape>(call.args[1]);
    Shape kept = x.type.shape;
    for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
    const Shape strides = contiguous_strides(kept);
    // The sum of one number is that number, so sums start from -0; the sum of none is 0.
    std::vector<double> sums(static_cast<size_t>(element_count(kept)), x.count() == 0 ? 0.0 : -0.0);
    for_each_index(x.type.shape, [&](const Shape& index, int64_t i) {
      int64_t to = 0;
      for (size_t d = 0; d < index.size(); ++d)
        if (kept[d] != 1) to += index[d] * strides[d];
      sums[static_cast<size_t>(to)] += x.real(i);
    });
    Array out = zeros(like);
    for (size_t i = 0; i < sums.size(); ++i) out.set(static_cast<int64_t>(i), sums[i]);
    return out;
  }

  void run_call(const Call& call) {
    const ValueId target = call.writes.empty() ? std::get<ValueId>(call.results.at(0)) : call.writes.at(0);
    const Value& like = trace_.values[target.index()];
    std::string op = call.op.substr(6, call.op.find('.') - 6);
    if (op.ends_with('_')) op.pop_back();
    if (op == "add")
      write(target, pointwise(call, like, std::plus<>()));
    else if (op == "sub")
      write(target, pointwise(call, like, std::minus<>()));
    else if (op == "mul")
      write(target, pointwise(call, like, std::multiplies<>()));
    else if (op == "neg")
      write(target, pointwise(call, like, [](auto a, auto) { return -a; }));
    else if (op == "clone")
      write(target, operand(call.args[0], like));
    else if (op == "copy" || op == "fill")
      write(target, operand(call.args[1], like));
    else if (op == "zero")
      write(target, zeros(like));
    else if (op == "sum")
      write(target, sum(call, like));
    else
      INTERNAL_CHECK(false, "{} is not run with memory semantics", call.op);
  }

  const Trace& trace_;
  TraceMemory memory_;
};

}  // namespace

TraceMemory run_with_memory(const Trace& trace, const std::map<StorageId, Bytes>& external) {
  return MemoryRun(trace, external).run();
}

}  // namespace stepc
