// Random programs of views, slices, in-place writes, overlapping aliases and detached uses, as Traces. The program of a
// seed with n steps is the beginning of its program with n + 1.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "ir/graph.h"
#include "ir/trace.h"

namespace stepc::test {

class RandomTrace {
 public:
  explicit RandomTrace(uint64_t seed) : random_(seed) {
    dtype_ = below(3) == 0 ? DType::kI64 : DType::kF32;
    const int64_t externals = 1 + below(3);
    for (int64_t i = 0; i < externals; ++i) add_external(i);
  }

  Trace make(int steps) {
    for (int i = 0; i < steps; ++i) add_step();
    const size_t outputs = 1 + static_cast<size_t>(below(3));
    for (size_t i = 0; i < outputs; ++i) trace_.outputs.push_back(any());
    return trace_;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  ValueId any() { return ValueId(static_cast<size_t>(below(static_cast<int64_t>(trace_.values.size())))); }
  const Value& value(ValueId id) const { return trace_.values[id.index()]; }

  Shape random_shape() {
    Shape shape;
    for (int64_t d = 0, rank = below(4); d < rank; ++d) shape.push_back(below(12) == 0 ? 0 : 1 + below(4));
    return shape;
  }

  // A dense window whose dimensions lie in memory in a random order.
  Value fresh_window(Shape sizes) {
    Value v;
    v.dtype = dtype_;
    v.storage = StorageId(trace_.storages.size());
    Shape order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(3) == 0) std::shuffle(order.begin(), order.end(), random_);
    v.strides.assign(sizes.size(), 1);
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      v.strides[static_cast<size_t>(order[i])] = stride;
      stride *= std::max<int64_t>(sizes[static_cast<size_t>(order[i])], 1);
    }
    v.sizes = std::move(sizes);
    return v;
  }
  ValueId add_value(Value v) {
    trace_.values.push_back(std::move(v));
    return ValueId(trace_.values.size() - 1);
  }
  void add_storage(int64_t elements, bool external) {
    trace_.storages.push_back({static_cast<uint64_t>(elements * size_of(dtype_)), external, false});
  }

  void add_external(int64_t i) {
    Value v = fresh_window(random_shape());
    int64_t elements = element_count(v.sizes);
    if (below(3) == 0) {  // a window on something larger
      v.offset = below(3);
      if (!v.sizes.empty() && below(2) == 0)
        for (int64_t& stride : v.strides) stride *= 2;
      elements = std::max<int64_t>(v.offset, extent_of(v)) + below(3);
    }
    add_storage(elements, true);
    const ValueId id = add_value(std::move(v));
    const Owner owner = i == 0 ? Owner::kParameter : i == 1 ? Owner::kBuffer : Owner::kBatch;
    trace_.externals.push_back({owner, std::to_string(i), id});
  }

  void add_call(std::string op, std::vector<Arg> args, ValueId result, bool writes) {
    Call call;
    call.op = std::move(op);
    call.args = std::move(args);
    call.results = {result};
    if (writes) call.writes = {result};
    trace_.calls.push_back(std::move(call));
  }

  // ---- views

  void add_view() {
    const ValueId from = any();
    Value v = value(from);
    const auto rank = static_cast<int64_t>(v.sizes.size());
    const auto d = static_cast<size_t>(rank == 0 ? 0 : below(rank));
    std::string op = "aten::detach";
    switch (below(8)) {
      case 0:
        if (rank == 0 || v.sizes[d] == 0) return;
        op = "aten::slice.Tensor";
        {
          const int64_t start = below(v.sizes[d]);
          const int64_t step = 1 + below(2);
          const int64_t most = (v.sizes[d] - start + step - 1) / step;
          v.offset += start * v.strides[d];
          v.sizes[d] = below(most + 1);
          v.strides[d] *= step;
        }
        break;
      case 1:
        if (rank == 0 || v.sizes[d] == 0) return;
        op = "aten::select.int";
        v.offset += below(v.sizes[d]) * v.strides[d];
        v.sizes.erase(v.sizes.begin() + static_cast<ptrdiff_t>(d));
        v.strides.erase(v.strides.begin() + static_cast<ptrdiff_t>(d));
        break;
      case 2: {
        if (rank < 2) return;
        op = "aten::transpose.int";
        const auto e = static_cast<size_t>(below(rank));
        std::swap(v.sizes[d], v.sizes[e]);
        std::swap(v.strides[d], v.strides[e]);
        break;
      }
      case 3:
        op = "aten::unsqueeze";
        v.sizes.insert(v.sizes.begin() + static_cast<ptrdiff_t>(d), 1);
        v.strides.insert(v.strides.begin() + static_cast<ptrdiff_t>(d), 1 + below(5));
        break;
      case 4:
        if (rank == 0 || v.sizes[d] != 1) return;
        op = "aten::expand";
        v.sizes[d] = 1 + below(3);
        v.strides[d] = 0;
        break;
      case 5:
        if (!is_contiguous(v)) return;
        op = "aten::view";
        v.sizes = factors(element_count(v.sizes));
        v.strides = contiguous_strides(v.sizes);
        break;
      case 6:
        op = "aten::as_strided";
        if (!random_window(v)) return;
        break;
      default:
        break;  // a detached alias
    }
    if (v.sizes.size() > 5) return;
    const ValueId to = add_value(std::move(v));
    add_call(op, {from}, to, false);
  }

  Shape factors(int64_t count) {
    Shape shape;
    while (count > 1) {
      Shape divisors;
      for (int64_t k = 2; k <= count; ++k)
        if (count % k == 0) divisors.push_back(k);
      shape.push_back(divisors[static_cast<size_t>(below(static_cast<int64_t>(divisors.size())))]);
      count /= shape.back();
    }
    if (count == 0) return {0};
    if (below(4) == 0) shape.push_back(1);
    return shape;
  }

  // Anything that fits into the storage, also windows that meet themselves.
  bool random_window(Value& v) {
    const int64_t elements = static_cast<int64_t>(trace_.storages[v.storage.index()].bytes) / size_of(v.dtype);
    if (elements == 0) return false;
    v.offset = below(elements);
    v.sizes.clear();
    v.strides.clear();
    for (int64_t i = 0, rank = below(3); i < rank; ++i) {
      v.sizes.push_back(1 + below(4));
      v.strides.push_back(below(6));
    }
    return extent_of(v) <= elements;
  }

  // ---- calls that compute

  // No element lies under two indices: what ATen asks of a value that is written.
  static bool may_be_written(const Value& v) {
    Shape places;
    const auto walk = [&](auto& self, size_t d, int64_t at) -> void {
      if (d == v.sizes.size()) return places.push_back(at);
      for (int64_t i = 0; i < v.sizes[d]; ++i) self(self, d + 1, at + i * v.strides[d]);
    };
    walk(walk, 0, v.offset);
    std::ranges::sort(places);
    return std::ranges::adjacent_find(places) == places.end();
  }
  static bool broadcasts(const Shape& from, const Shape& to) {
    if (from.size() > to.size()) return false;
    for (size_t d = 0; d < from.size(); ++d)
      if (from[d] != 1 && from[d] != to[d + to.size() - from.size()]) return false;
    return true;
  }
  // A tensor that broadcasts to `sizes`, or a number.
  Arg operand(const Shape& sizes, bool* is_tensor) {
    for (int tries = 0; tries < 8; ++tries) {
      const ValueId id = any();
      *is_tensor = true;
      if (broadcasts(value(id).sizes, sizes)) return id;
    }
    *is_tensor = false;
    return int64_t{below(5) - 2};
  }

  void add_write() {
    const ValueId to = any();
    const Shape sizes = value(to).sizes;
    if (!may_be_written(value(to))) return;
    bool tensor = false;
    const Arg other = operand(sizes, &tensor);
    switch (below(6)) {
      case 0:
        return add_call("aten::zero_", {to}, to, true);
      case 1:
        return add_call("aten::fill_.Scalar", {to, int64_t{below(9)}}, to, true);
      case 2:
        return add_call(tensor ? "aten::mul_.Tensor" : "aten::mul_.Scalar", {to, other}, to, true);
      case 3:
        return add_call("aten::neg_", {to}, to, true);
      case 4:
        if (tensor) return add_call("aten::copy_", {to, other}, to, true);
        [[fallthrough]];
      default:
        return add_call(tensor ? "aten::add_.Tensor" : "aten::add_.Scalar", {to, other, int64_t{1}}, to, true);
    }
  }

  void add_fresh() {
    const ValueId from = any();
    Shape sizes = value(from).sizes;
    std::vector<Arg> args = {from};
    std::string op = "aten::neg";
    switch (below(4)) {
      case 0:
        op = "aten::clone";
        break;
      case 1: {
        Shape dims;
        Shape kept;
        for (size_t d = 0; d < sizes.size(); ++d) {
          if (below(2) == 0)
            dims.push_back(static_cast<int64_t>(d));
          else
            kept.push_back(sizes[d]);
        }
        if (dims.empty()) return;
        op = "aten::sum.dim_IntList";
        args.emplace_back(dims);
        sizes = kept;
        break;
      }
      case 2: {
        bool tensor = false;
        args.push_back(operand(sizes, &tensor));
        op = tensor ? "aten::sub.Tensor" : "aten::sub.Scalar";
        break;
      }
      default:
        break;
    }
    Value v = fresh_window(std::move(sizes));
    add_storage(element_count(v.sizes), false);
    const ValueId to = add_value(std::move(v));
    add_call(op, std::move(args), to, false);
  }

  void add_step() {
    const int64_t kind = below(10);
    if (kind < 5) return add_view();
    if (kind < 8) return add_write();
    add_fresh();
  }

  std::mt19937_64 random_;
  DType dtype_ = DType::kF32;
  Trace trace_;
};

}  // namespace stepc::test
