// Windows of views on random strided operands: they show what the op gives, and there is one wherever there can be.
#include "ops/view_window.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "base/check.h"
#include "interp/evaluate.h"

namespace stepc {
namespace {

class RandomViews {
 public:
  explicit RandomViews(uint64_t seed) : random_(seed) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }

  // Dimensions in any order, some with gaps, some repeated.
  ViewWindow operand() {
    ViewWindow window{{}, {}, 8 * below(2)};
    const int64_t sizes[] = {1, 2, 3, 4, 6};
    for (int64_t d = below(5); d > 0; --d) window.sizes.push_back(one_in(40) ? 0 : sizes[below(5)]);
    std::vector<size_t> order = permutation(window.sizes.size(), one_in(2));
    window.strides.resize(order.size());
    int64_t stride = one_in(6) ? 2 : 1;
    for (size_t i = order.size(); i-- > 0;) {
      const size_t d = order[i];
      if (one_in(8)) {
        window.strides[d] = 0;
        continue;
      }
      window.strides[d] = stride;
      stride *= std::max<int64_t>(1, window.sizes[d]);
      if (one_in(6)) stride += 1 + below(3);
    }
    if (one_in(4))
      for (size_t d = 0; d < order.size(); ++d)
        if (window.sizes[d] == 1) window.strides[d] = below(9);
    return window;
  }

  Attrs attrs_for(std::string_view op, DType from, const Shape& sizes) {
    if (op == "reshape") return {{"shape", same_count(element_count(sizes))}};
    if (op == "transpose") {
      const std::vector<size_t> order = permutation(sizes.size(), true);
      return {{"permutation", Shape(order.begin(), order.end())}};
    }
    if (op == "expand") {
      Shape shape(static_cast<size_t>(below(3)), 2);
      for (int64_t size : sizes) shape.push_back(size == 1 ? 1 + below(3) : size);
      return {{"shape", shape}};
    }
    if (op == "slice") {
      Shape starts, shape, steps;
      for (int64_t size : sizes) {
        starts.push_back(below(size + 1));
        steps.push_back(1 + below(2));
        shape.push_back(below((size - starts.back() + steps.back() - 1) / steps.back() + 1));
      }
      return {{"starts", starts}, {"shape", shape}, {"steps", steps}};
    }
    if (op == "as_strided") {
      Shape shape, strides;
      int64_t left = element_count(sizes) - 1;
      const int64_t offset = left > 0 ? below(left) : 0;
      left -= offset;
      while (left > 0 && one_in(2)) {
        shape.push_back(2);
        strides.push_back(below(left + 1));
        left -= strides.back();
      }
      if (element_count(sizes) == 0) shape.push_back(0), strides.push_back(1);
      return {{"shape", shape}, {"strides", strides}, {"offset", offset}};
    }
    if (op == "reverse") {
      Shape dims;
      for (size_t d = 0; d < sizes.size(); ++d)
        if (one_in(3)) dims.push_back(static_cast<int64_t>(d));
      return {{"dims", dims}};
    }
    const DType dtypes[] = {DType::kU8, DType::kI16, DType::kI32, DType::kI64};
    DType to = dtypes[below(4)];
    if (sizes.empty() || sizes.back() * size_of(from) % size_of(to) != 0) to = from;
    return {{"dtype", to}};
  }

 private:
  std::vector<size_t> permutation(size_t count, bool shuffled) {
    std::vector<size_t> order(count);
    for (size_t d = 0; d < count; ++d) order[d] = d;
    if (shuffled) std::ranges::shuffle(order, random_);
    return order;
  }
  Shape same_count(int64_t count) {
    Shape shape;
    if (count == 0) return {2, 0, 3};
    for (int64_t left = count; left > 1;) {
      int64_t factor = 2;
      while (left % factor != 0 || (factor < left && one_in(3))) ++factor;
      shape.push_back(factor);
      left /= factor;
    }
    std::ranges::shuffle(shape, random_);
    while (one_in(3)) shape.insert(shape.begin() + below(std::ssize(shape) + 1), 1);
    return shape;
  }

  std::mt19937_64 random_;
};

// Whether elements at these places, of every index in order, are evenly spaced along each dimension.
bool is_window(const Shape& sizes, const Array& places) {
  if (places.count() == 0) return true;
  Shape strides(sizes.size(), 0);
  const Shape dense = contiguous_strides(sizes);
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) strides[d] = places.integer(dense[d]) - places.integer(0);
  bool all = true;
  for_each_index(sizes, [&](const Shape& index, int64_t i) {
    all = all && places.integer(i) == places.integer(0) + dot(index, strides);
  });
  return all;
}

TEST(ViewWindow, ShowsWhatTheOpGives) {
  RandomViews random(7);
  std::map<std::string_view, std::pair<int, int>> found;  // windows, and views that have to be copied
  constexpr std::string_view kOps[] = {"reshape", "transpose", "expand", "slice", "as_strided", "bitcast", "reverse"};
  for (int round = 0; round < 7000; ++round) {
    const std::string_view op = kOps[static_cast<size_t>(round) % std::size(kOps)];
    const DType from = op == "bitcast" && random.one_in(2) ? DType::kI16 : DType::kI64;
    const ViewWindow operand = random.operand();
    int64_t last = operand.offset;
    for (size_t d = 0; d < operand.sizes.size(); ++d)
      last += std::max<int64_t>(0, operand.sizes[d] - 1) * operand.strides[d];
    Array memory({from, {(last / 8 + 1) * 8}});  // each element its own place
    for (int64_t i = 0; i < memory.count(); ++i) memory.set(i, i);
    const Array x = rearranged(memory, operand.sizes,
                               [&](const Shape& index) { return operand.offset + dot(index, operand.strides); });
    Node node;
    node.op = op;
    node.attrs = random.attrs_for(op, from, operand.sizes);
    SCOPED_TRACE(str("{}{} of [{}]({}) at {}", op, to_text(node.attrs), fmt::join(operand.sizes, ", "),
                     fmt::join(operand.strides, ", "), operand.offset));

    const Array result = evaluate(op_def(op), {x}, node.attrs)[0];
    const std::optional<ViewWindow> view = window_of(node, from, operand);
    auto& [windows, copies] = found[op];
    ++(view ? windows : copies);
    if (!view) {
      if (op == "as_strided" || op == "bitcast") {
        ASSERT_FALSE(is_dense(operand.sizes, operand.strides));
      } else if (op == "reverse") {
        const Shape& dims = node.attrs.get<Shape>("dims");
        ASSERT_TRUE(std::ranges::any_of(dims, [&](int64_t d) { return operand.sizes[static_cast<size_t>(d)] > 1; }));
      } else {
        ASSERT_FALSE(is_window(result.type.shape, result));
      }
      continue;
    }
    ASSERT_EQ(view->sizes, result.type.shape);
    ASSERT_EQ(view->strides.size(), view->sizes.size());
    const DType to = result.type.dtype;
    const Array seen = from_bytes({to, {memory.count() * size_of(from) / size_of(to)}}, to_bytes(memory));
    ASSERT_EQ(
        rearranged(seen, view->sizes, [&](const Shape& index) { return view->offset + dot(index, view->strides); })
            .integers,
        result.integers);
  }
  for (std::string_view op : {"transpose", "expand", "slice"}) EXPECT_EQ(found[op], std::pair(1000, 0)) << op;
  for (std::string_view op : {"reshape", "as_strided", "bitcast", "reverse"}) {
    EXPECT_GT(found[op].first, 100) << op;
    EXPECT_GT(found[op].second, 100) << op;
  }
}

std::optional<ViewWindow> reshaped(const ViewWindow& operand, const Shape& shape) {
  Node node;
  node.op = "reshape";
  node.attrs = {{"shape", shape}};
  return window_of(node, DType::kF32, operand);
}

TEST(ViewWindow, AReshapeIsOneWherePyTorchsViewIs) {
  const ViewWindow gaps{{4, 3}, {5, 1}, 2};
  EXPECT_EQ(reshaped(gaps, {2, 2, 3}), (ViewWindow{{2, 2, 3}, {10, 5, 1}, 2}));
  EXPECT_EQ(reshaped(gaps, {4, 1, 3, 1}), (ViewWindow{{4, 1, 3, 1}, {5, 3, 1, 1}, 2}));
  EXPECT_EQ(reshaped(gaps, {12}), std::nullopt);
  EXPECT_EQ(reshaped(gaps, {2, 6}), std::nullopt);
  EXPECT_EQ(reshaped({{3, 4}, {1, 3}, 0}, {12}), std::nullopt);                       // transposed
  EXPECT_EQ(reshaped({{2, 3, 4}, {12, 1, 3}, 0}, {6, 4}), std::nullopt);              // heads, transposed
  EXPECT_EQ(reshaped({{3, 4}, {0, 0}, 5}, {2, 6}), (ViewWindow{{2, 6}, {0, 0}, 5}));  // one element
  EXPECT_EQ(reshaped({{3, 4}, {0, 1}, 0}, {12}), std::nullopt);                       // one row
  EXPECT_EQ(reshaped({{0, 4}, {9, 7}, 3}, {2, 0}), (ViewWindow{{2, 0}, contiguous_strides({2, 0}), 3}));
  EXPECT_EQ(reshaped({{}, {}, 3}, {1, 1}), (ViewWindow{{1, 1}, {1, 1}, 3}));
}

TEST(ViewWindow, ABitcastCountsItsOwnElements) {
  Node node;
  node.op = "bitcast";
  node.attrs = {{"dtype", DType::kI64}};
  EXPECT_EQ(window_of(node, DType::kI16, {{3, 8}, {8, 1}, 12}), (ViewWindow{{3, 2}, {2, 1}, 3}));
  EXPECT_EQ(window_of(node, DType::kI16, {{3, 8}, {8, 1}, 13}), std::nullopt);  // between two elements
  node.attrs = {{"dtype", DType::kI8}};
  EXPECT_EQ(window_of(node, DType::kI16, {{3, 8}, {8, 1}, 13}), (ViewWindow{{3, 16}, {16, 1}, 26}));
}

}  // namespace
}  // namespace stepc
