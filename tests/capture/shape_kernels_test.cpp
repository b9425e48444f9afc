// Every row: a call on real tensors and the same call on virtual ones give results of equal size, strides, type, offset
// and storage size, and the same aliases of arguments. Each is tried in float32 and bfloat16, with its tensors as
// given, channels last, and in random permutations; what the CPU kernel itself refuses is left out, but once it has to
// work.
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "aten/virtual_memory.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"

namespace stepc {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Row {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> call;
};

Tensor f(at::IntArrayRef sizes) { return at::rand(sizes) * 0.8 + 0.1; }
Tensor i(at::IntArrayRef sizes, int64_t end) { return at::randint(0, end, sizes, at::kLong); }
Tensor b(at::IntArrayRef sizes) { return at::rand(sizes) < 0.5; }
template <class... Results>
Tensors list(const std::tuple<Results...>& results) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, results);
}

// One tensor as `variant` says: 0 as it is, 1 channels last, 2 ... in a random order of memory.
Tensor arranged(const Tensor& x, int variant, std::mt19937& random) {
  if (variant == 0 || x.dim() < 2) return x;
  if (variant == 1) {
    if (x.dim() == 4) return x.contiguous(at::MemoryFormat::ChannelsLast);
    return x.dim() == 5 ? x.contiguous(at::MemoryFormat::ChannelsLast3d) : x;
  }
  std::vector<int64_t> order(static_cast<size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<int64_t> inverse(order.size());
  for (size_t d = 0; d < order.size(); ++d) inverse[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
  return x.permute(order).contiguous().permute(inverse);
}

Tensor without_values(const Tensor& x) {
  return tensor_on(virtual_storage(x.storage().nbytes()), x.sizes(), x.strides(), x.storage_offset(), x.scalar_type());
}

std::string geometry(const Tensors& results, const Tensors& inputs) {
  std::string text;
  for (const Tensor& result : results) {
    if (!result.defined()) {
      text += "undefined; ";
      continue;
    }
    text +=
        str("{}[{}] strides [{}] + {}, {} bytes", c10::toString(result.scalar_type()), fmt::join(result.sizes(), ", "),
            fmt::join(result.strides(), ", "), result.storage_offset(), result.storage().nbytes());
    for (size_t k = 0; k < inputs.size(); ++k)
      if (result.storage().unsafeGetStorageImpl() == inputs[k].storage().unsafeGetStorageImpl())
        text += str(", is argument {}", k);
    text += "; ";
  }
  return text;
}

void check(const Row& row) {
  const at::NoGradGuard no_grad;
  std::mt19937 random(7);
  int compared = 0;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (int variant = 0; variant < 5; ++variant) {
      Tensors inputs;
      for (const Tensor& x : row.inputs)
        inputs.push_back(arranged(x.is_floating_point() ? x.to(dtype) : x, variant, random));
      Tensors virtuals;
      for (const Tensor& x : inputs) virtuals.push_back(without_values(x));
      std::string expected;
      try {
        Tensors copies;  // calls that write get their own, of the same geometry
        for (const Tensor& x : inputs)
          copies.push_back(at::empty_strided(x.sizes(), x.strides(), x.options()).copy_(x));
        expected = geometry(row.call(copies), copies);
      } catch (const c10::Error&) {
        continue;
      }
      std::string seen;
      try {
        const VirtualRegion region;
        seen = geometry(row.call(virtuals), virtuals);
      } catch (const std::exception& error) {
        seen = std::string(error.what()).substr(0, 200);
      }
      EXPECT_EQ(seen, expected) << row.name << ", " << c10::toString(dtype) << ", variant " << variant;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << row.name << " was refused every time";
}

void check(const std::vector<Row>& rows) {
  at::manual_seed(1);
  for (const Row& row : rows) check(row);
}

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

TEST(ShapeKernels, ElementwiseOfOneTensor) {
  const std::pair<const char*, Unary> functions[] = {{"abs", at::abs},
                                                     {"neg", at::neg},
                                                     {"exp", at::exp},
                                                     {"log", at::log},
                                                     {"sqrt", at::sqrt},
                                                     {"rsqrt", at::rsqrt},
                                                     {"sin", at::sin},
                                                     {"cos", at::cos},
                                                     {"tanh", at::tanh},
                                                     {"sigmoid", at::sigmoid},
                                                     {"relu", at::relu},
                                                     {"silu", at::silu},
                                                     {"mish", at::mish},
                                                     {"erf", at::erf},
                                                     {"reciprocal", at::reciprocal},
                                                     {"floor", at::floor},
                                                     {"ceil", at::ceil},
                                                     {"round", at::round},
                                                     {"sign", at::sign},
                                                     {"sgn", at::sgn},
                                                     {"isnan", at::isnan},
                                                     {"isinf", at::isinf},
                                                     {"logical_not", at::logical_not},
                                                     {"log1p", at::log1p},
                                                     {"expm1", at::expm1},
                                                     {"hardswish", at::hardswish},
                                                     {"hardsigmoid", at::hardsigmoid},
                                                     {"square", at::square},
                                                     {"log2", at::log2},
                                                     {"trunc", at::trunc}};
  std::vector<Row> rows;
  for (const auto& [name, function] : functions) {
    const auto call = [function = function](const Tensors& x) { return Tensors{function(x[0]), function(x[1])}; };
    rows.push_back({name, {f({2, 3, 4, 5}), f({2, 6, 1, 1})}, call});
  }
  rows.push_back({"bitwise_not", {i({3, 4}, 9)}, [](const Tensors& x) { return Tensors{at::bitwise_not(x[0])}; }});
  rows.push_back({"of integers", {i({3, 4}, 9)}, [](const Tensors& x) {
                    return Tensors{at::sqrt(x[0]), at::exp(x[0]), x[0] / 2, x[0] * 2, x[0] * 0.5, at::relu(x[0])};
                  }});
  check(rows);
}

TEST(ShapeKernels, ElementwiseOfTwo) {
  const std::pair<const char*, Binary> functions[] = {{"mul", at::mul},
                                                      {"div", at::div},
                                                      {"pow", at::pow},
                                                      {"maximum", at::maximum},
                                                      {"minimum", at::minimum},
                                                      {"eq", at::eq},
                                                      {"ne", at::ne},
                                                      {"lt", at::lt},
                                                      {"le", at::le},
                                                      {"gt", at::gt},
                                                      {"ge", at::ge},
                                                      {"atan2", at::atan2},
                                                      {"fmod", at::fmod},
                                                      {"remainder", at::remainder},
                                                      {"logical_and", at::logical_and},
                                                      {"logical_or", at::logical_or},
                                                      {"floor_divide", at::floor_divide}};
  std::vector<Row> rows;
  for (const auto& [name, function] : functions)
    rows.push_back(
        {name,
         {f({2, 3, 4, 5}), f({3, 1, 5}), f({2, 3, 4, 5}), i({4, 5}, 5) + 1},
         [function = function](const Tensors& x) {
           return Tensors{function(x[0], x[1]), function(x[0], x[2]), function(x[0], x[3]), function(x[3], x[3])};
         }});
  rows.push_back({"numbers", {f({2, 3, 4, 5}), f({2, 6, 1, 1}), i({3, 4}, 5)}, [](const Tensors& x) {
                    Tensors results;
                    for (const Tensor& t : x)
                      for (const Tensor& r : Tensors{t + 1, t - 0.5, 1 - t, t * 2, t / 3, t == 1, t > 0.5,
                                                     at::pow(t, 2), at::clamp(t, 0.1, 0.9), at::clamp_min(t, 1),
                                                     at::remainder(t, 2), at::add(t, 2, 3), at::rsub(t, 1)})
                        results.push_back(r);
                    return results;
                  }});
  rows.push_back({"mixed types", {f({3, 4}), i({3, 4}, 5), b({3, 4}), f({})}, [](const Tensors& x) {
                    return Tensors{x[0] + x[1], x[0] * x[2], x[1] + x[2], x[2] & x[2],
                                   x[1] & 3,    x[0] * x[3], x[1] * x[3], x[1] / x[1]};
                  }});
  rows.push_back({"three", {f({2, 3, 4}), f({2, 3, 4}), f({4}), b({2, 3, 1})}, [](const Tensors& x) {
                    return Tensors{at::where(x[3], x[0], x[1]),     at::where(x[3], x[0], 0.5),
                                   at::addcmul(x[0], x[1], x[2]),   at::addcdiv(x[0], x[1], x[2]),
                                   at::lerp(x[0], x[1], 0.3),       at::lerp(x[0], x[1], x[2]),
                                   at::masked_fill(x[0], x[3], -1), at::masked_fill(x[0], x[3], x[2].select(0, 0))};
                  }});
  check(rows);
}

TEST(ShapeKernels, ActivationsAndLosses) {
  check(std::vector<Row>{
      {"activations",
       {f({2, 4, 6}), f({2, 4, 6})},
       [](const Tensors& x) {
         return Tensors{at::gelu(x[0]),
                        at::gelu(x[0], "tanh"),
                        at::gelu_backward(x[1], x[0]),
                        at::silu_backward(x[1], x[0]),
                        at::sigmoid_backward(x[1], x[0]),
                        at::tanh_backward(x[1], x[0]),
                        at::elu(x[0]),
                        at::leaky_relu(x[0]),
                        at::leaky_relu_backward(x[1], x[0], 0.1, false),
                        at::softplus(x[0]),
                        at::hardtanh(x[0]),
                        at::hardtanh_backward(x[1], x[0], -1, 1),
                        at::hardswish_backward(x[1], x[0]),
                        at::threshold_backward(x[1], x[0], 0),
                        at::glu(x[0], 2),
                        at::glu_backward(x[1].narrow(2, 0, 3), x[0], 2),
                        at::log_sigmoid(x[0]),
                        at::logit(x[0]),
                        at::mish_backward(x[1], x[0]),
                        at::nan_to_num(x[0])};
       }},
      {"prelu",
       {f({2, 4, 6}), f({2, 4, 6}), f({4})},
       [](const Tensors& x) {
         const Tensor weight = x[2].view({1, 4, 1});
         return Tensors{at::_prelu_kernel(x[0], weight), std::get<0>(at::_prelu_kernel_backward(x[1], x[0], weight)),
                        std::get<1>(at::_prelu_kernel_backward(x[1], x[0], weight))};
       }},
      {"dropout",
       {f({2, 4, 6}), f({2, 4, 6}), b({2, 4, 6})},
       [](const Tensors& x) {
         Tensors results = list(at::native_dropout(x[0], 0.5, true));
         results.push_back(at::native_dropout_backward(x[1], x[2], 2.0));
         results.push_back(at::bernoulli(x[0], 0.5));
         results.push_back(x[0].bernoulli_(0.5));
         return results;
       }},
      {"softmax",
       {f({2, 4, 6}), f({2, 4, 6})},
       [](const Tensors& x) {
         return Tensors{at::_softmax(x[0], -1, false), at::_log_softmax(x[0], 1, false), at::_safe_softmax(x[0], -1),
                        at::_softmax_backward_data(x[1], x[0], -1, x[0].scalar_type()),
                        at::_log_softmax_backward_data(x[1], x[0], -1, x[0].scalar_type())};
       }},
      {"pairwise losses",
       {f({2, 4, 6}), f({2, 4, 6}), f({})},
       [](const Tensors& x) {
         Tensors results;
         for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
           const Tensor grad = reduction == at::Reduction::None ? x[0] : x[2];
           for (const Tensor& result :
                {at::mse_loss(x[0], x[1], reduction), at::smooth_l1_loss(x[0], x[1], reduction),
                 at::huber_loss(x[0], x[1], reduction), at::binary_cross_entropy(x[0], x[1], {}, reduction),
                 at::binary_cross_entropy_with_logits(x[0], x[1], {}, {}, reduction),
                 at::mse_loss_backward(grad, x[0], x[1], reduction),
                 at::smooth_l1_loss_backward(grad, x[0], x[1], reduction, 1.0),
                 at::huber_loss_backward(grad, x[0], x[1], reduction, 1.0),
                 at::binary_cross_entropy_backward(grad, x[0], x[1], {}, reduction)})
             results.push_back(result);
         }
         return results;
       }},
      {"nll",
       {f({6, 5}), i({6}, 5), f({})},
       [](const Tensors& x) {
         Tensors results = list(at::nll_loss_forward(x[0], x[1], {}, at::Reduction::Mean, -100));
         results.push_back(at::nll_loss_backward(x[2], x[0], x[1], {}, at::Reduction::Mean, -100, x[2]));
         return results;
       }},
      {"nll2d",
       {f({2, 5, 3, 4}), i({2, 3, 4}, 5), f({})},
       [](const Tensors& x) {
         Tensors results = list(at::nll_loss2d_forward(x[0], x[1], {}, at::Reduction::Mean, -100));
         results.push_back(at::nll_loss2d_backward(x[2], x[0], x[1], {}, at::Reduction::Mean, -100, x[2]));
         return results;
       }},
  });
}

TEST(ShapeKernels, ProductsAndReductions) {
  check(std::vector<Row>{
      {"products",
       {f({3, 4}), f({4, 5}), f({5}), f({2, 3, 4}), f({2, 4, 5}), f({2, 3, 5})},
       [](const Tensors& x) {
         return Tensors{at::mm(x[0], x[1]),    at::addmm(x[2], x[0], x[1]),   at::bmm(x[3], x[4]),
                        at::mv(x[1], x[2]),    at::baddbmm(x[5], x[3], x[4]), at::dot(x[2], x[2]),
                        at::matmul(x[3], x[1])};
       }},
      {"reductions",
       {f({2, 3, 4, 5}), i({3, 4}, 9)},
       [](const Tensors& x) {
         const std::vector<int64_t> dims = {0, 2};
         Tensors results = {at::sum(x[0]),
                            at::sum(x[1]),
                            at::mean(x[0]),
                            at::sum(x[0], dims),
                            at::sum(x[0], dims, true),
                            at::mean(x[0], dims),
                            at::mean(x[0], {-1}, true),
                            at::amax(x[0], dims),
                            at::max(x[0]),
                            at::min(x[0]),
                            at::argmax(x[0], 1),
                            at::all(x[1]),
                            at::any(x[1]),
                            at::any(x[0], 1),
                            at::prod(x[0]),
                            at::var(x[0], dims, at::Scalar(1), true),
                            at::std(x[0], {1}, at::Scalar(0)),
                            at::logsumexp(x[0], dims),
                            at::cumsum(x[0], 1),
                            at::cumsum(x[1], 1),
                            at::linalg_vector_norm(x[0], 2),
                            at::linalg_vector_norm(x[0], 2, dims, true),
                            at::sum(x[0], at::kFloat),
                            at::mean(x[0], {2}, false, at::kFloat)};
         for (const auto& pair : {at::max(x[0], 2), at::min(x[0], 2, true), at::topk(x[0], 2), at::sort(x[0], 1),
                                  at::var_mean(x[0], {3}, at::Scalar(1))}) {
           results.push_back(std::get<0>(pair));
           results.push_back(std::get<1>(pair));
         }
         return results;
       }},
      {"foreach",
       {f({3, 4}), f({2, 6, 1, 1}), f({5})},
       [](const Tensors& x) {
         Tensors results;
         for (const Tensors& some : {at::_foreach_sqrt(x), at::_foreach_mul(x, 2), at::_foreach_add(x, x),
                                     at::_foreach_norm(x), at::_foreach_div(x, x)})
           results.insert(results.end(), some.begin(), some.end());
         return results;
       }},
  });
}

TEST(ShapeKernels, CopiesAndIndices) {
  check(std::vector<Row>{
      {"copies",
       {f({2, 3, 4, 6}), f({2, 3, 4, 6})},
       [](const Tensors& x) {
         return Tensors{x[0].clone(),
                        x[0].clone(at::MemoryFormat::Contiguous),
                        x[0].to(at::kDouble),
                        x[0].select(1, 1).clone(),
                        x[0].expand({5, 2, 3, 4, 6}).clone(),
                        at::cat({x[0], x[1]}, 1),
                        at::stack({x[0], x[1]}, 2),
                        x[0].repeat({2, 1, 3, 1}),
                        x[0].roll({1}, {2}),
                        x[0].roll({1, 2}, {2, 3}),
                        x[0].roll(3),
                        x[0].flip({1, 3}),
                        at::constant_pad_nd(x[0], {1, 2, 0, 1}),
                        at::constant_pad_nd(x[0], {-1, 0}),
                        at::tril(x[0]),
                        at::triu(x[0], 1),
                        at::_unsafe_view(x[0], {6, 24})};
       }},
      {"factories",
       {f({40, 30, 4, 6})},
       [](const Tensors& x) {
         return Tensors{at::zeros_like(x[0]),
                        at::ones_like(x[0]),
                        at::empty_like(x[0]),
                        at::full_like(x[0], 2),
                        at::rand_like(x[0]),
                        at::zeros_like(x[0], {}, at::MemoryFormat::Contiguous),
                        at::zeros_like(x[0].slice(1, 0, 30, 2)),
                        x[0].new_zeros({30000, 5}),
                        x[0].new_empty({30000}),
                        at::zeros({700, 700}),
                        at::full({700, 700}, true),
                        at::full({700, 700}, 1.5),
                        at::randn({700, 700}),
                        at::empty_strided({700, 700}, {1, 700}),
                        at::randint(9, {700, 700}),
                        at::zeros_like(x[0], x[0].options().dtype(at::kDouble))};
       }},
      {"backward of views",
       {f({2, 4, 6})},
       [](const Tensors& x) {
         return Tensors{at::slice_backward(x[0], {2, 9, 6}, 1, 1, 5, 1), at::select_backward(x[0], {2, 3, 4, 6}, 1, 1),
                        at::slice_scatter(x[0], x[0].narrow(1, 0, 2), 1, 0, 2),
                        at::select_scatter(x[0], x[0].select(1, 0), 1, 2),
                        at::diagonal_backward(x[0], {2, 4, 6, 6}, 0, 2, 3)};
       }},
      {"pixels",
       {f({2, 8, 4, 6})},
       [](const Tensors& x) {
         return Tensors{at::pixel_shuffle(x[0], 2), at::pixel_unshuffle(x[0], 2)};
       }},
      {"embeddings",
       {f({10, 6}), i({2, 5}, 10), f({2, 5, 6})},
       [](const Tensors& x) {
         Tensors results = list(at::_embedding_bag(x[0], x[1].reshape({10}), at::zeros({1}, at::kLong)));
         results.resize(1);
         results.push_back(at::embedding(x[0], x[1]));
         results.push_back(at::embedding_dense_backward(x[2], x[1], 10, -1, false));
         return results;
       }},
      {"gathering",
       {f({4, 5, 6}), i({4, 5, 6}, 4), i({3}, 4), b({4, 5, 6}), f({4, 5, 6})},
       [](const Tensors& x) {
         return Tensors{at::gather(x[0], 0, x[1]),
                        at::index_select(x[0], 1, x[2]),
                        at::index(x[0], {x[2]}),
                        at::index(x[0], {std::optional<Tensor>(), x[2], x[2]}),
                        at::scatter(x[0], 0, x[1], x[4]),
                        at::scatter(x[0], 0, x[1], 1.5),
                        at::scatter_add(x[0], 0, x[1], x[4]),
                        at::take(x[0], x[1]),
                        at::index_put(x[0], {x[2]}, x[4].narrow(0, 0, 3)),
                        at::index_add(x[0], 0, x[2], x[4].narrow(0, 0, 3)),
                        at::masked_scatter(x[0], x[3], x[4]),
                        at::index_fill(x[0], 0, x[2], 1)};
       }},
      {"in place",
       {f({4, 5}), f({4, 5}), b({4, 5}), i({3}, 4)},
       [](const Tensors& x) {
         return Tensors{x[0].add_(x[1]),
                        x[0].mul_(2),
                        x[0].copy_(x[1]),
                        x[0].zero_(),
                        x[0].fill_(1),
                        x[0].addcdiv_(x[1], x[1]),
                        x[0].masked_fill_(x[2], 0),
                        x[0].index_add_(0, x[3], x[1].narrow(0, 0, 3)),
                        x[0].normal_(),
                        x[0].uniform_(),
                        x[0].t(),
                        x[0].index_put_({x[2]}, x[1].sum())};
       }},
  });
}

TEST(ShapeKernels, Norms) {
  const std::array<bool, 3> all = {true, true, true};
  check(std::vector<Row>{
      {"layer norm",
       {f({2, 5, 6}), f({6}), f({6}), f({2, 5, 6})},
       [=](const Tensors& x) {
         Tensors results = list(at::native_layer_norm(x[0], {6}, x[1], x[2], 1e-5));
         for (const Tensor& result :
              list(at::native_layer_norm_backward(x[3], x[0], {6}, results[1], results[2], x[1], x[2], all)))
           results.push_back(result);
         return results;
       }},
      {"layer norm without parameters",
       {f({2, 5, 6})},
       [](const Tensors& x) {
         return list(at::native_layer_norm(x[0], {5, 6}, {}, {}, 1e-5));
       }},
      {"group norm",
       {f({2, 6, 4, 5}), f({6}), f({6}), f({2, 6, 4, 5})},
       [=](const Tensors& x) {
         Tensors results = list(at::native_group_norm(x[0], x[1], x[2], 2, 6, 20, 3, 1e-5));
         for (const Tensor& result :
              list(at::native_group_norm_backward(x[3], x[0], results[1], results[2], x[1], 2, 6, 20, 3, all)))
           results.push_back(result);
         return results;
       }},
      {"batch norm",
       {f({2, 6, 4, 5}), f({6}), f({6}), f({6}), f({6}), f({2, 6, 4, 5})},
       [=](const Tensors& x) {
         Tensors results = list(at::native_batch_norm(x[0], x[1], x[2], x[3], x[4], true, 0.1, 1e-5));
         for (const Tensor& result : list(at::native_batch_norm_backward(x[5], x[0], x[1], x[3], x[4], results[1],
                                                                         results[2], true, 1e-5, all)))
           results.push_back(result);
         return results;
       }},
      {"batch norm in evaluation",
       {f({2, 6, 4, 5}), f({6}), f({6}), f({6}), f({6})},
       [](const Tensors& x) { return list(at::native_batch_norm(x[0], x[1], x[2], x[3], x[4], false, 0.1, 1e-5)); }},
      {"batch norm of pixels",
       {f({2, 6, 1, 1}), f({6}), f({6}), f({6}), f({6})},
       [](const Tensors& x) { return list(at::native_batch_norm(x[0], x[1], x[2], x[3], x[4], true, 0.1, 1e-5)); }},
  });
}

TEST(ShapeKernels, MixedPrecisionNorms) {
  // Statistics of a low-precision tensor under float32 parameters are kept in float32.
  const auto half = [](const Tensor& x) { return x.to(at::kBFloat16); };
  check(std::vector<Row>{
      {"layer norm",
       {f({2, 5, 6}), f({6}).to(at::kDouble), f({6}).to(at::kDouble)},
       [=](const Tensors& x) {
         return list(at::native_layer_norm(half(x[0]), {6}, x[1].to(at::kFloat), x[2].to(at::kFloat), 1e-5));
       }},
      {"group norm",
       {f({2, 6, 4, 5}), f({6}), f({6})},
       [=](const Tensors& x) {
         return list(at::native_group_norm(half(x[0]), x[1].to(at::kFloat), x[2].to(at::kFloat), 2, 6, 20, 3, 1e-5));
       }},
      {"batch norm",
       {f({2, 6, 4, 5}), f({6}), f({6})},
       [=](const Tensors& x) {
         const Tensor parameter = x[1].to(at::kFloat);
         return list(at::native_batch_norm(half(x[0]), parameter, parameter, parameter, parameter, true, 0.1, 1e-5));
       }},
  });
}

TEST(ShapeKernels, Attention) {
  check({{"flash",
          {f({2, 4, 6, 8}), f({2, 4, 7, 8}), f({2, 4, 7, 8}), f({2, 1, 6, 7}), f({2, 4, 6, 8})},
          [](const Tensors& x) {
            Tensors results = list(at::_scaled_dot_product_flash_attention_for_cpu(x[0], x[1], x[2], 0, false, x[3]));
            for (const Tensor& result : list(at::_scaled_dot_product_flash_attention_for_cpu_backward(
                     x[4], x[0], x[1], x[2], results[0], results[1], 0, false, x[3])))
              results.push_back(result);
            return results;
          }}});
}

TEST(ShapeKernels, Convolution) {
  std::vector<Row> rows;
  for (int dims = 1; dims <= 3; ++dims)
    for (int64_t kernel : {1, 3})
      for (int64_t groups : {1, 4})
        for (bool transposed : {false, true})
          for (int64_t stride : {1, 2}) {
            std::vector<int64_t> image = {2, 4};
            std::vector<int64_t> weight = {transposed ? 4 : 8, (transposed ? 8 : 4) / groups};
            for (int d = 0; d < dims; ++d) {
              image.push_back(5 + d);
              weight.push_back(kernel);
            }
            const auto n = static_cast<size_t>(dims);
            rows.push_back({str("convolution {}d, kernel {}, groups {}, stride {}{}", dims, kernel, groups, stride,
                                transposed ? ", transposed" : ""),
                            {f(image), f(weight), f({8})},
                            [=](const Tensors& x) {
                              const std::vector<int64_t> s(n, stride), p(n, kernel / 2), d(n, 1), o(n, 0);
                              const Tensor y = at::convolution(x[0], x[1], x[2], s, p, d, transposed, o, groups);
                              Tensors results =
                                  list(at::convolution_backward(y, x[0], x[1], at::IntArrayRef{8}, s, p, d, transposed,
                                                                o, groups, {true, true, true}));
                              results.push_back(y);
                              return results;
                            }});
          }
  check(rows);
}

TEST(ShapeKernels, PoolingPaddingAndSampling) {
  check(std::vector<Row>{
      {"pooling 2d",
       {f({2, 3, 8, 9})},
       [](const Tensors& x) {
         Tensors results = list(at::max_pool2d_with_indices(x[0], {2, 2}));
         results.push_back(
             at::max_pool2d_with_indices_backward(results[0], x[0], {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, results[1]));
         results.push_back(at::avg_pool2d(x[0], {3, 3}, {2, 2}, {1, 1}, true));
         results.push_back(
             at::avg_pool2d_backward(at::avg_pool2d(x[0], {2, 2}), x[0], {2, 2}, {2, 2}, {0, 0}, false, true, {}));
         results.push_back(at::_adaptive_avg_pool2d(x[0], {3, 2}));
         results.push_back(at::_adaptive_avg_pool2d_backward(results.back(), x[0]));
         return results;
       }},
      {"pooling 3d",
       {f({2, 3, 4, 5, 6})},
       [](const Tensors& x) {
         Tensors results = list(at::max_pool3d_with_indices(x[0], {2, 2, 2}));
         results.push_back(at::max_pool3d_with_indices_backward(results[0], x[0], {2, 2, 2}, {2, 2, 2}, {0, 0, 0},
                                                                {1, 1, 1}, false, results[1]));
         results.push_back(at::_adaptive_avg_pool3d(x[0], {2, 2, 2}));
         results.push_back(at::_adaptive_avg_pool3d_backward(results.back(), x[0]));
         return results;
       }},
      {"upsampling",
       {f({2, 3, 4, 5}), f({2, 3, 8, 10})},
       [](const Tensors& x) {
         return Tensors{at::upsample_nearest2d(x[0], {8, 10}), at::upsample_bilinear2d(x[0], {8, 10}, false),
                        at::upsample_bicubic2d(x[0], {8, 10}, false),
                        at::upsample_nearest2d_backward(x[1], {8, 10}, {2, 3, 4, 5}),
                        at::upsample_bilinear2d_backward(x[1], {8, 10}, {2, 3, 4, 5}, false)};
       }},
      {"padding",
       {f({2, 3, 4, 5}), f({2, 3, 6, 8}), f({3, 4, 5}), f({2, 3, 4, 5, 6}), f({2, 3, 5, 6, 8})},
       [](const Tensors& x) {
         return Tensors{at::reflection_pad2d(x[0], {1, 2, 1, 1}),
                        at::reflection_pad2d_backward(x[1], x[0], {1, 2, 1, 1}),
                        at::replication_pad2d(x[0], {1, 2, 1, 1}),
                        at::replication_pad2d_backward(x[1], x[0], {1, 2, 1, 1}),
                        at::reflection_pad1d(x[2], {1, 2}),
                        at::reflection_pad3d(x[3], {1, 1, 1, 0, 0, 1}),
                        at::replication_pad3d(x[3], {1, 1, 1, 0, 0, 1}),
                        at::upsample_nearest3d(x[3], {8, 10, 12})};
       }},
      {"grid",
       {f({2, 3, 4, 5}), f({2, 6, 7, 2}), f({2, 3, 6, 7})},
       [](const Tensors& x) {
         Tensors results = list(at::grid_sampler_2d_backward(x[2], x[0], x[1], 0, 0, false, {true, true}));
         results.push_back(at::grid_sampler_2d(x[0], x[1], 0, 0, false));
         return results;
       }},
  });
}

TEST(ShapeKernels, WithoutARuleTheKernelIsRehearsed) {
  check(std::vector<Row>{
      {"unfolding",
       {f({2, 3, 6, 6})},
       [](const Tensors& x) {
         return Tensors{at::im2col(x[0], {2, 2}, {1, 1}, {0, 0}, {2, 2})};
       }},
      {"fourier", {f({2, 3, 8})}, [](const Tensors& x) { return Tensors{at::abs(at::_fft_r2c(x[0], {2}, 0, true))}; }},
  });
}

}  // namespace
}  // namespace stepc
