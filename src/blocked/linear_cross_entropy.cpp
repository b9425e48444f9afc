// All products are made turned, (classes, tokens), so that the weight is a left operand as it lies, and so are the
// score gradients in the weight's gradient. For each chunk of tokens:
//   1. logits' = weight hidden'. Each tile leaves exp(logit - top) in the element type, with top and sum over its own
//      128 classes for each token: no logit is kept, no exponential is made twice.
//   2. The tiles' tops and sums give each token's logsumexp, its loss, and for every tile a factor that turns its
//      exponentials into gradients of the logits; smoothing and the target are then subtracted.
//   3. weight gradient += gradients' hidden;  hidden gradient = gradients weight, a slab of classes at a time.
#include "blocked/linear_cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "blocked/brgemm.h"
#include "blocked/matmul.h"
#include "blocked/packed_operand.h"
#include "blocked/workspace.h"

namespace stepc::blocked {

namespace {

constexpr int64_t kSlab = 4096;  // classes whose weights are packed at a time

int64_t chunk_of(const LinearCrossEntropy& call) { return std::max<int64_t>(1, std::min(call.chunk, call.tokens)); }
// From one class to the next.
int64_t row_stride_of(const LinearCrossEntropy& call) {
  return call.type == Number::kF32 ? packed_row_stride<float>(chunk_of(call)) : packed_row_stride<Bf16>(chunk_of(call));
}
int64_t tiles_of(const LinearCrossEntropy& call) { return ceil_div(call.classes, kTileRows); }

// Where what a run keeps lies.
template <class T>
struct Scratch {
  T* exponentials;  // (classes, chunk): later the gradients of the logits
  float* top;       // (tiles, chunk) of a tile's classes
  float* sum;
  float* logit_sum;
  float* factor;
  float* target_logit;     // (chunk)
  double* loss;            // (chunk)
  float* subtract;         // (chunk): off every class, for label smoothing
  float* hidden_gradient;  // (chunk, width)
  std::byte* products;     // workspace of the matmuls
};

// The three products of a chunk of `count` tokens, without data: for their workspace.
size_t product_bytes(const LinearCrossEntropy& call, int64_t count, int threads) {
  const int64_t slab = std::min(kSlab, call.classes);
  const Product logits{count, {nullptr, 1, call.hidden_stride}, false, {}, {}};
  const Product weights{call.width, {nullptr, call.hidden_stride, 1}, false, {}, {}};
  const Product hidden{call.width, {nullptr, call.weight_stride, 1}, false, {}, {}};
  return std::max(
      {workspace_bytes({call.type, 1, call.classes, call.width, {nullptr, call.weight_stride, 1}, {&logits, 1}, {}},
                       threads),
       workspace_bytes({call.type, 1, call.classes, count, {nullptr, row_stride_of(call), 1}, {&weights, 1}, {}},
                       threads),
       workspace_bytes({call.type, 1, count, slab, {nullptr, 1, row_stride_of(call)}, {&hidden, 1}, {}}, threads)});
}

template <class T>
Scratch<T> take_scratch(const LinearCrossEntropy& call, int threads, Workspace& workspace) {
  const int64_t chunk = chunk_of(call);
  const int64_t tiles = tiles_of(call) * chunk;
  Scratch<T> scratch{};
  scratch.exponentials = workspace.take<T>(call.classes * row_stride_of(call));
  scratch.top = workspace.take<float>(tiles);
  scratch.sum = workspace.take<float>(tiles);
  scratch.logit_sum = workspace.take<float>(tiles);
  scratch.factor = workspace.take<float>(tiles);
  scratch.target_logit = workspace.take<float>(chunk);
  scratch.loss = workspace.take<double>(chunk);
  scratch.subtract = workspace.take<float>(chunk);
  scratch.hidden_gradient = workspace.take<float>(chunk * call.width);
  size_t bytes = product_bytes(call, chunk, threads);
  if (const int64_t rest = call.tokens % chunk; rest != 0) {  // not always smaller: an odd size may need packing
    bytes = std::max(bytes, product_bytes(call, rest, threads));
  }
  scratch.products = workspace.take<std::byte>(static_cast<int64_t>(bytes));
  return scratch;
}

template <class T>
class Sweep {
 public:
  Sweep(const LinearCrossEntropy& call, const LinearCrossEntropyResult& result, const MicroKernels& kernels,
        int threads, void* memory)
      : call_(call),
        result_(result),
        kernels_(kernels),
        threads_(threads),
        chunk_(chunk_of(call)),
        stride_(row_stride_of(call)),
        table_(rows_of(kernels.avx512)) {
    Workspace workspace(memory);
    scratch_ = take_scratch<T>(call, threads, workspace);
  }

  void run() {
    int64_t counted = 0;
    for (int64_t i = 0; i < call_.tokens; ++i) counted += ignored(i) ? 0 : 1;
    // PyTorch's mean over nothing is NaN.
    const double weight = !call_.mean   ? 1.0
                          : counted > 0 ? 1.0 / static_cast<double>(counted)
                                        : std::numeric_limits<double>::quiet_NaN();
    double loss = call_.mean && counted == 0 ? weight : 0.0;
    bool accumulate = result_.accumulate;
    for (first_ = 0; first_ < call_.tokens; first_ += chunk_) {
      count_ = std::min(chunk_, call_.tokens - first_);
      make_exponentials();
      make_gradients(static_cast<float>(counted > 0 ? weight * result_.scale : 0.0));
      for (int64_t i = 0; i < count_; ++i) loss += scratch_.loss[i] * (counted > 0 ? weight : 0.0);
      if (result_.weight_gradient != nullptr) make_weight_gradient(accumulate);
      if (result_.hidden_gradient != nullptr) make_hidden_gradient();
      accumulate = true;
    }
    if (call_.tokens == 0 && result_.weight_gradient != nullptr && !accumulate) {
      std::fill_n(result_.weight_gradient, call_.classes * call_.width, 0.0F);
    }
    if (result_.loss != nullptr) *result_.loss = static_cast<float>(loss);
  }

 private:
  bool ignored(int64_t token) const { return call_.targets[token] == call_.ignore_index; }
  const T* hidden() const { return static_cast<const T*>(call_.hidden) + first_ * call_.hidden_stride; }

  void make_exponentials() {
    std::fill_n(scratch_.target_logit, count_, 0.0F);
    Product product{count_, {hidden(), 1, call_.hidden_stride}, false, {}, {}};
    product.epilogue.context = this;
    product.epilogue.tile = [](const TileRef& tile, void* context) { static_cast<Sweep*>(context)->finish_tile(tile); };
    matmul({call_.type, 1, call_.classes, call_.width, {call_.weight, call_.weight_stride, 1}, {&product, 1}, {}},
           kernels_, threads_, scratch_.products);
  }

  void finish_tile(const TileRef& tile) {
    const int64_t place = tile.row / kTileRows * chunk_ + tile.column;
    table_.of<T>().exp_tile({tile.values, tile.ld, tile.rows, tile.columns,
                             scratch_.exponentials + tile.row * stride_ + tile.column, stride_, scratch_.top + place,
                             scratch_.sum + place, scratch_.logit_sum + place});
    for (int64_t j = 0; j < tile.columns; ++j) {  // a target lies in exactly one tile
      const int64_t token = tile.column + j;
      const int64_t row = call_.targets[first_ + token] - tile.row;
      if (row >= 0 && row < tile.rows) scratch_.target_logit[token] = tile.values[row * tile.ld + j];
    }
  }

  // Loss of each token and, in place, gradients from exponentials. `weight` is the gradient of one token's loss.
  void make_gradients(float weight) {
    constexpr int64_t kTokens = 64;
    for_tasks(kernels_, threads_, ceil_div(count_, kTokens), [&](int, int64_t task) {
      for (int64_t token = task * kTokens; token < std::min(count_, (task + 1) * kTokens); ++token) {
        finish_token(token, weight);
      }
    });
    for_tasks(kernels_, threads_, tiles_of(call_), [&](int, int64_t tile) {
      const int64_t row = tile * kTileRows;
      const int64_t rows = std::min(kTileRows, call_.classes - row);
      T* values = scratch_.exponentials + row * stride_;
      table_.of<T>().scale_columns(values, stride_, rows, count_, scratch_.factor + tile * chunk_, scratch_.subtract);
      for (int64_t token = 0; token < count_; ++token) {
        const int64_t target = call_.targets[first_ + token] - row;
        if (ignored(first_ + token) || target < 0 || target >= rows) continue;
        values[target * stride_ + token] = from_float<T>(target_gradient(token, weight));
      }
    });
  }

  void finish_token(int64_t token, float weight) {
    const int64_t tiles = tiles_of(call_);
    float top = -INFINITY;
    for (int64_t t = 0; t < tiles; ++t) top = std::max(top, scratch_.top[t * chunk_ + token]);
    double sum = 0;
    double logit_sum = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t place = t * chunk_ + token;
      scratch_.factor[place] = std::exp(scratch_.top[place] - top);
      sum += static_cast<double>(scratch_.factor[place]) * scratch_.sum[place];
      logit_sum += scratch_.logit_sum[place];
    }
    const bool counts = !ignored(first_ + token);
    const double logsumexp = top + std::log(sum);
    const double smoothing = call_.label_smoothing;
    scratch_.loss[token] = counts ? logsumexp - (1 - smoothing) * scratch_.target_logit[token] -
                                        smoothing * logit_sum / static_cast<double>(call_.classes)
                                  : 0.0;
    const float share = counts ? static_cast<float>(weight / sum) : 0.0F;
    for (int64_t t = 0; t < tiles; ++t) scratch_.factor[t * chunk_ + token] *= share;
    scratch_.subtract[token] = counts ? call_.label_smoothing / static_cast<float>(call_.classes) * weight : 0.0F;
    // The target's own probability, from its logit: its exponential was rounded.
    scratch_.target_logit[token] = static_cast<float>(std::exp(scratch_.target_logit[token] - logsumexp));
  }

  float target_gradient(int64_t token, float weight) const {
    return (scratch_.target_logit[token] - (1 - call_.label_smoothing)) * weight - scratch_.subtract[token];
  }

  void make_weight_gradient(bool accumulate) {
    Product product{call_.width,
                    {hidden(), call_.hidden_stride, 1},
                    false,
                    {result_.weight_gradient, Number::kF32, call_.width},
                    {}};
    product.epilogue.accumulate = accumulate ? 1.0F : 0.0F;
    matmul({call_.type, 1, call_.classes, count_, {scratch_.exponentials, stride_, 1}, {&product, 1}, {}}, kernels_,
           threads_, scratch_.products);
  }

  void make_hidden_gradient() {
    for (int64_t row = 0; row < call_.classes; row += kSlab) {
      const bool last = row + kSlab >= call_.classes;
      const Result sums{scratch_.hidden_gradient, Number::kF32, call_.width};
      Product product{call_.width,
                      {static_cast<const T*>(call_.weight) + row * call_.weight_stride, call_.weight_stride, 1},
                      false,
                      sums,
                      {}};
      if (row > 0) product.epilogue.residual = sums;
      if (last) {
        product.c = {static_cast<T*>(result_.hidden_gradient) + first_ * result_.hidden_gradient_stride, call_.type,
                     result_.hidden_gradient_stride};
      }
      matmul({call_.type,
              1,
              count_,
              std::min(kSlab, call_.classes - row),
              {scratch_.exponentials + row * stride_, 1, stride_},
              {&product, 1},
              {}},
             kernels_, threads_, scratch_.products);
    }
  }

  const LinearCrossEntropy& call_;
  const LinearCrossEntropyResult& result_;
  const MicroKernels& kernels_;
  int threads_;
  int64_t chunk_;
  int64_t stride_;                 // of the exponentials
  int64_t first_ = 0, count_ = 0;  // tokens of the chunk at hand
  RowTable table_;
  Scratch<T> scratch_;
};

void check(const LinearCrossEntropy& call) {
  INTERNAL_CHECK(call.tokens >= 0 && call.width > 0 && call.classes > 0, "{} tokens, {} wide, {} classes", call.tokens,
                 call.width, call.classes);
  INTERNAL_CHECK(call.label_smoothing >= 0 && call.label_smoothing <= 1, "label smoothing {}", call.label_smoothing);
}

}  // namespace

size_t workspace_bytes(const LinearCrossEntropy& call, int threads) {
  check(call);
  Workspace workspace(nullptr);
  if (call.type == Number::kF32) {
    take_scratch<float>(call, threads, workspace);
  } else {
    take_scratch<Bf16>(call, threads, workspace);
  }
  return workspace.bytes();
}

void linear_cross_entropy(const LinearCrossEntropy& call, const LinearCrossEntropyResult& result,
                          const MicroKernels& kernels, int threads, void* workspace) {
  check(call);
  for (int64_t i = 0; i < call.tokens; ++i) {
    const int64_t target = call.targets[i];
    USER_CHECK(target == call.ignore_index || (target >= 0 && target < call.classes),
               "target {} of token {} is not a class: there are {} (ignored: {})", target, i, call.classes,
               call.ignore_index);
  }
  if (call.type == Number::kF32) {
    Sweep<float>(call, result, kernels, threads, workspace).run();
  } else {
    Sweep<Bf16>(call, result, kernels, threads, workspace).run();
  }
}

}  // namespace stepc::blocked
