#include "blocked/matmul.h"

#include <gtest/gtest.h>

#include "tests/blocked/reference.h"

namespace stepc::blocked {
namespace {

Operand operand(const at::Tensor& tensor) {  // (batch, rows, columns) or (rows, columns)
  const int64_t d = tensor.dim();
  return {tensor.data_ptr(), tensor.stride(d - 2), tensor.stride(d - 1), d == 3 ? tensor.stride(0) : 0};
}
Result result(const at::Tensor& tensor) {
  const int64_t d = tensor.dim();
  return {tensor.data_ptr(), tensor.scalar_type() == at::kFloat ? Number::kF32 : Number::kBf16, tensor.stride(d - 2),
          d == 3 ? tensor.stride(0) : 0};
}
void run(const Matmul& call, const MicroKernels& kernels, int threads = 2) {
  const at::Tensor memory = dirty_memory(workspace_bytes(call, threads));
  matmul(call, kernels, threads, memory.data_ptr());
}

// A matrix of these sizes in one of the layouts that programs have.
at::Tensor laid_out(Random& random, int64_t rows, int64_t columns, Number number) {
  switch (random.between(0, 3)) {
    case 0:
      return random_tensor({rows, columns}, number);
    case 1:
      return random_tensor({columns, rows}, number).t();
    case 2:
      return random_tensor({rows + 1, columns + 3}, number).slice(0, 1).slice(1, 2, columns + 2);
    default:
      return random_tensor({rows, columns, 2}, number).select(2, 1);
  }
}

// Not more than twice what ATen's own product errs on the same numbers, or the rounding of a single element.
void expect_near(const at::Tensor& got, const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  const at::Tensor exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  const double atens = distance(at::matmul(a, b), exact);
  const double limit = std::max(2 * atens, got.scalar_type() == at::kFloat ? 2e-6 : 2.1e-3);
  ASSERT_LE(distance(got, exact), limit) << what;
}

TEST(Matmul, EqualsTheReferenceOverRandomShapesLayoutsAndTypes) {
  const OneThread one;
  at::manual_seed(1);
  Random random(1);
  const std::vector<int64_t> sizes = {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 257};
  for (int round = 0; round < 160; ++round) {
    const Number number = random.coin() ? Number::kBf16 : Number::kF32;
    const Number out_number = random.coin() ? number : Number::kF32;
    const int64_t m = random.one_of(sizes), n = random.one_of(sizes), k = random.one_of(sizes);
    const at::Tensor a = laid_out(random, m, k, number), b = laid_out(random, k, n, number);
    const at::Tensor c = at::full({m, n + 5}, 9).to(aten_type(out_number)).slice(1, 0, n);
    const Product product{n, operand(b), result(c)};
    const MicroKernels kernels = random.one_of(machines());
    run({number, 1, m, k, operand(a), {&product, 1}}, kernels, static_cast<int>(random.between(1, 3)));
    expect_near(c, a, b, str("round {}: {} x {} x {} on {}", round, m, n, k, to_text(features_of(kernels))));
  }
}

TEST(Matmul, LargeEnoughForEveryBlockIsRightAndRepeatsItsBits) {
  at::manual_seed(2);
  for (const Number number : {Number::kF32, Number::kBf16}) {
    const at::Tensor a = random_tensor({300, 2100}, number), b = random_tensor({2100, 700}, number);
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 3, 1}) {
      const at::Tensor c = at::zeros({300, 700}, aten_type(number));
      const Product product{700, operand(b), result(c)};
      run({number, 1, 300, 2100, operand(a), {&product, 1}}, probe_micro_kernels(), threads);
      expect_near(c, a, b, "large");
      if (first.empty()) first = bytes_of_tensor(c);
      ASSERT_EQ(bytes_of_tensor(c), first) << threads << " threads";
    }
  }
}

TEST(Matmul, Batches) {
  const OneThread one;
  at::manual_seed(3);
  for (const MicroKernels& kernels : machines()) {
    for (const bool shared : {false, true}) {
      const at::Tensor a = random_tensor({3, 70, 40}, Number::kBf16);
      const at::Tensor b =
          shared ? random_tensor({90, 40}, Number::kBf16).t() : random_tensor({3, 40, 90}, Number::kBf16);
      const at::Tensor c = at::zeros({3, 70, 90}, at::kBFloat16);
      const Product product{90, operand(b), result(c)};
      run({Number::kBf16, 3, 70, 40, operand(a), {&product, 1}}, kernels);
      expect_near(c, a, b, "batch");
      const at::Tensor one = a.select(0, 0).t();  // one A for all: (40, 70) seen as rows of 70
      const at::Tensor many = at::zeros({3, 40, 90}, at::kFloat);
      const at::Tensor right = random_tensor({3, 70, 90}, Number::kBf16);
      const Product second{90, operand(right), result(many)};
      run({Number::kBf16, 3, 40, 70, operand(one), {&second, 1}}, kernels);
      ASSERT_LE(distance(many, at::matmul(one.to(at::kDouble), right.to(at::kDouble))), 1e-6);
    }
  }
}

TEST(Matmul, NothingToSumOrToMake) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{3, 5, 0}, {0, 5, 4}, {3, 0, 4}}) {
    const at::Tensor a = at::ones({m, k}), b = at::ones({k, n}), c = at::ones({m, n});
    Product product{n, operand(b), result(c)};
    for (const bool accumulate : {true, false}) {
      product.accumulate = accumulate;
      run({Number::kF32, 1, m, k, operand(a), {&product, 1}}, probe_micro_kernels());
      EXPECT_TRUE(at::equal(c, accumulate ? at::ones({m, n}) : at::zeros({m, n})));
    }
  }
}

TEST(Matmul, AddsAResidualAndWhatTheResultHolds) {
  const OneThread one;
  at::manual_seed(4);
  for (const MicroKernels& kernels : machines()) {
    const at::Tensor a = random_tensor({150, 64}, Number::kBf16), b = random_tensor({64, 75}, Number::kBf16);
    const at::Tensor residual = random_tensor({150, 75}, Number::kF32);
    const at::Tensor before = at::randn({150, 75}), c = before.clone();
    Product product{75, operand(b), result(c)};
    product.residual = result(residual);
    product.accumulate = true;
    run({Number::kBf16, 1, 150, 64, operand(a), {&product, 1}}, kernels);
    const at::Tensor sums = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
    EXPECT_LE(distance(c, sums + residual + before), 1e-6);
  }
}

TEST(Matmul, ProductsOfOneInput) {
  const OneThread one;
  at::manual_seed(5);
  for (const MicroKernels& kernels : machines()) {
    const at::Tensor x = random_tensor({140, 96}, Number::kBf16);
    std::vector<at::Tensor> weights, results;
    std::vector<Product> products;
    for (const int64_t n : {130, 64, 33}) {
      weights.push_back(random_tensor({n, 96}, Number::kBf16).t());
      results.push_back(at::zeros({140, n}, at::kBFloat16));
      products.push_back({n, operand(weights.back()), result(results.back())});
    }
    run({Number::kBf16, 1, 140, 96, operand(x), products}, kernels);
    for (size_t i = 0; i < weights.size(); ++i) expect_near(results[i], x, weights[i], str("product {}", i));
  }
}

// The tiles of all products at one place, each place once, by workers that have numbers of their own.
TEST(Matmul, ProductsFinishedTogether) {
  at::manual_seed(5);
  struct Difference {
    at::Tensor out;
    std::array<std::atomic<int>, 2> busy = {};
    std::atomic<bool> met = false;
  };
  for (const MicroKernels& kernels : machines()) {
    const at::Tensor x = random_tensor({2, 270, 96}, Number::kBf16);
    const at::Tensor first = random_tensor({96, 100}, Number::kBf16), second = random_tensor({96, 100}, Number::kBf16);
    const Product pair[] = {{100, operand(first)}, {100, operand(second)}};
    Difference difference;
    difference.out = at::zeros({2, 270, 100});
    Matmul call{Number::kBf16, 2, 270, 96, operand(x), pair};
    call.context = &difference;
    call.finish = [](std::span<const TileRef> tiles, int worker, void* context) {
      auto& to = *static_cast<Difference*>(context);
      if (to.busy[static_cast<size_t>(worker)]++ != 0) to.met = true;
      const TileRef &a = tiles[0], &b = tiles[1];
      for (int64_t i = 0; i < a.rows; ++i) {
        float* row = to.out.data_ptr<float>() + (a.batch * 270 + a.row + i) * 100 + a.column;
        for (int64_t j = 0; j < a.columns; ++j) row[j] += a.values[i * a.ld + j] - b.values[i * b.ld + j];
      }
      --to.busy[static_cast<size_t>(worker)];
    };
    run(call, kernels);
    EXPECT_FALSE(difference.met);
    const at::Tensor wide = x.to(at::kDouble);
    EXPECT_LE(distance(difference.out, at::matmul(wide, first.to(at::kDouble) - second.to(at::kDouble))), 2e-6);
  }
}

TEST(Matmul, NanAndInfinityGoWhereTheyBelong) {
  const at::Tensor a = at::ones({20, 40}), b = at::ones({40, 70}), c = at::zeros({20, 70});
  a[3][5] = NAN;
  b[7][64] = INFINITY;
  const Product product{70, operand(b), result(c)};
  for (const MicroKernels& kernels : machines()) {
    run({Number::kF32, 1, 20, 40, operand(a), {&product, 1}}, kernels);
    EXPECT_TRUE(at::equal(at::isnan(c), at::isnan(at::matmul(a, b))));
    EXPECT_TRUE(at::equal(at::isinf(c), at::isinf(at::matmul(a, b))));
  }
}

}  // namespace
}  // namespace stepc::blocked
