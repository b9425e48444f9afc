// All products are made transposed, (classes, tokens), so that the weight is a left operand as it lies, and so are the
// gradients of the logits in the weight's gradient. For each chunk of tokens:
//   1. logits' = weight hidden'. Each tile leaves exp(logit - top) in the element type, with top and sum over its own
//      128 classes for each token: no logit is kept, no exponential is made twice.
//   2. The tiles' tops and sums give each token's logsumexp, what it loses, and for every tile a factor that turns its
//      exponentials into gradients of the logits. With g and s the gradients of loss[i] and logp_sum[i], that of logit
//      j is p_j (g - classes s) + s, and g less at the target.
//   3. weight gradient += gradients' hidden;  hidden gradient = gradients weight, a slab of classes at a time.
#include "blocked/linear_cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

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
struct LossScratch {
  T* exponentials;  // (classes, chunk): later the gradients of the logits
  float* top;       // (tiles, chunk) of a tile's classes
  float* sum;
  float* logit_sum;
  float* factor;
  float* target_logit;     // (chunk): later the gradient of that logit
  float* subtract;         // (chunk): off every class's gradient
  float* hidden_gradient;  // (chunk, width): sums of several slabs
  float* weight_gradient;  // (classes, width): sums that end as something narrower
  std::byte* products;     // workspace of the matmuls
};

bool is_one_chunk(const LinearCrossEntropy& call) { return call.tokens <= chunk_of(call); }
bool has_weight_sums(const LinearCrossEntropy& call) {
  return call.weight_gradient != nullptr && call.weight_gradient_type != Number::kF32 && !is_one_chunk(call);
}

bool is_one_slab(const LinearCrossEntropy& call) { return call.classes <= kSlab; }

// The products of a chunk of `count` tokens that are wanted, without data: for their workspace.
size_t product_bytes(const LinearCrossEntropy& call, int64_t count, int threads) {
  static char sums = 0;
  const Product logits{count, {nullptr, 1, call.hidden_stride}};
  Matmul product{call.type, 1, call.classes, call.width, {nullptr, call.weight_stride, 1}, {&logits, 1}};
  product.finish = [](std::span<const TileRef>, int, void*) {};
  size_t bytes = workspace_bytes(product, threads);
  if (call.weight_gradient != nullptr) {
    Product weights{call.width, {nullptr, call.hidden_stride, 1}, {nullptr, call.weight_gradient_type}};
    if (has_weight_sums(call)) weights.residual.data = &sums;
    product = {call.type, 1, call.classes, count, {nullptr, row_stride_of(call), 1}, {&weights, 1}};
    bytes = std::max(bytes, workspace_bytes(product, threads));
  }
  if (call.hidden_gradient != nullptr) {
    Product hidden{call.width, {nullptr, call.weight_stride, 1}, {nullptr, call.type}};
    if (!is_one_slab(call)) hidden.residual.data = &sums;
    product = {call.type, 1, count, std::min(kSlab, call.classes), {nullptr, 1, row_stride_of(call)}, {&hidden, 1}};
    bytes = std::max(bytes, workspace_bytes(product, threads));
  }
  return bytes;
}

template <class T>
LossScratch<T> take_loss_scratch(const LinearCrossEntropy& call, int threads, Workspace& workspace) {
  const int64_t chunk = chunk_of(call);
  const int64_t tiles = tiles_of(call) * chunk;
  LossScratch<T> scratch{};
  scratch.exponentials = workspace.take<T>(call.classes * row_stride_of(call));
  scratch.top = workspace.take<float>(tiles);
  scratch.sum = workspace.take<float>(tiles);
  scratch.logit_sum = workspace.take<float>(tiles);
  scratch.factor = workspace.take<float>(tiles);
  scratch.target_logit = workspace.take<float>(chunk);
  scratch.subtract = workspace.take<float>(chunk);
  const bool has_hidden_sums = call.hidden_gradient != nullptr && !is_one_slab(call);
  scratch.hidden_gradient = workspace.take<float>(has_hidden_sums ? chunk * call.width : 0);
  scratch.weight_gradient = workspace.take<float>(has_weight_sums(call) ? call.classes * call.width : 0);
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
  Sweep(const LinearCrossEntropy& call, const MicroKernels& kernels, int threads, void* memory)
      : call_(call),
        kernels_(kernels),
        threads_(threads),
        chunk_(chunk_of(call)),
        stride_(row_stride_of(call)),
        table_(rows_of(kernels.avx512)) {
    Workspace workspace(memory);
    scratch_ = take_loss_scratch<T>(call, threads, workspace);
  }

  void run() {
    for (first_ = 0; first_ < call_.tokens; first_ += chunk_) {
      count_ = std::min(chunk_, call_.tokens - first_);
      make_exponentials();
      finish_tokens();
      if (call_.hidden_gradient == nullptr && call_.weight_gradient == nullptr) continue;
      make_gradients();
      if (call_.weight_gradient != nullptr) make_weight_gradient();
      if (call_.hidden_gradient != nullptr) make_hidden_gradient();
    }
    if (call_.tokens == 0 && call_.weight_gradient != nullptr) {
      std::memset(call_.weight_gradient, 0,
                  static_cast<size_t>(call_.classes * call_.width) * bytes_of(call_.weight_gradient_type));
    }
  }

 private:
  bool ignored(int64_t token) const { return call_.targets[token] == call_.ignore_index; }
  const T* hidden() const { return static_cast<const T*>(call_.hidden) + first_ * call_.hidden_stride; }

  void make_exponentials() {
    std::fill_n(scratch_.target_logit, count_, 0.0F);
    const Product product{count_, {hidden(), 1, call_.hidden_stride}};
    Matmul call{call_.type, 1, call_.classes, call_.width, {call_.weight, call_.weight_stride, 1}, {&product, 1}};
    call.context = this;
    call.finish = [](std::span<const TileRef> tiles, int, void* context) {
      static_cast<Sweep*>(context)->finish_tile(tiles.front());
    };
    matmul(call, kernels_, threads_, scratch_.products);
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

  void finish_tokens() {
    constexpr int64_t kTokens = 64;
    for_tasks(kernels_, threads_, ceil_div(count_, kTokens), [&](int, int64_t task) {
      for (int64_t token = task * kTokens; token < std::min(count_, (task + 1) * kTokens); ++token) {
        finish_token(token);
      }
    });
  }

  // What a token loses, and from its exponentials to its gradients.
  void finish_token(int64_t token) {
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
    const int64_t i = first_ + token;
    const bool counts = !ignored(i);
    const double logsumexp = top + std::log(sum);
    const double logp = scratch_.target_logit[token] - logsumexp;
    if (call_.loss != nullptr) call_.loss[i] = counts ? static_cast<float>(-logp) : 0.0F;
    if (call_.logp_sum != nullptr) {
      call_.logp_sum[i] = static_cast<float>(logit_sum - static_cast<double>(call_.classes) * logsumexp);
    }
    const double g = counts && call_.gradient != nullptr ? call_.gradient[i] : 0.0;
    const double s = call_.sum_gradient != nullptr ? call_.sum_gradient[i] : 0.0;
    const double pull = g - static_cast<double>(call_.classes) * s;
    for (int64_t t = 0; t < tiles; ++t) scratch_.factor[t * chunk_ + token] *= static_cast<float>(pull / sum);
    scratch_.subtract[token] = static_cast<float>(-s);
    // The target's own probability comes from its logit: its exponential was rounded.
    scratch_.target_logit[token] = static_cast<float>(std::exp(logp) * pull + s - g);
  }

  // In place, from exponentials.
  void make_gradients() {
    for_tasks(kernels_, threads_, tiles_of(call_), [&](int, int64_t tile) {
      const int64_t row = tile * kTileRows;
      const int64_t rows = std::min(kTileRows, call_.classes - row);
      T* values = scratch_.exponentials + row * stride_;
      table_.of<T>().scale_columns(values, stride_, rows, count_, scratch_.factor + tile * chunk_, scratch_.subtract);
      for (int64_t token = 0; token < count_; ++token) {
        const int64_t target = call_.targets[first_ + token] - row;
        if (ignored(first_ + token) || target < 0 || target >= rows) continue;
        values[target * stride_ + token] = from_float<T>(scratch_.target_logit[token]);
      }
    });
  }

  void make_weight_gradient() {
    const Result whole{call_.weight_gradient, call_.weight_gradient_type, call_.width};
    const Result sums = has_weight_sums(call_) ? Result{scratch_.weight_gradient, Number::kF32, call_.width} : whole;
    const bool last = first_ + count_ == call_.tokens;
    Product product{call_.width, {hidden(), call_.hidden_stride, 1}, last ? whole : sums};
    if (first_ > 0 && product.c.data == sums.data) product.accumulate = true;
    if (first_ > 0 && product.c.data != sums.data) product.residual = sums;
    matmul({call_.type, 1, call_.classes, count_, {scratch_.exponentials, stride_, 1}, {&product, 1}}, kernels_,
           threads_, scratch_.products);
  }

  void make_hidden_gradient() {
    for (int64_t row = 0; row < call_.classes; row += kSlab) {
      const bool last = row + kSlab >= call_.classes;
      const Result sums{scratch_.hidden_gradient, Number::kF32, call_.width};
      Product product{
          call_.width, {static_cast<const T*>(call_.weight) + row * call_.weight_stride, call_.weight_stride, 1}, sums};
      if (row > 0) product.residual = sums;
      if (last) {
        product.c = {static_cast<T*>(call_.hidden_gradient) + first_ * call_.hidden_gradient_stride, call_.type,
                     call_.hidden_gradient_stride};
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
  const MicroKernels& kernels_;
  int threads_;
  int64_t chunk_;
  int64_t stride_;                 // of the exponentials
  int64_t first_ = 0, count_ = 0;  // tokens of the chunk at hand
  RowTable table_;
  LossScratch<T> scratch_;
};

void check(const LinearCrossEntropy& call) {
  INTERNAL_CHECK(call.tokens >= 0 && call.width > 0 && call.classes > 0, "{} tokens, {} wide, {} classes", call.tokens,
                 call.width, call.classes);
}

}  // namespace

int64_t frugal_chunk(const LinearCrossEntropy& call) {
  constexpr int64_t kFew = 512;
  LinearCrossEntropy few = call;
  LinearCrossEntropy all = call;
  few.chunk = kFew;
  all.chunk = std::max(kFew, call.tokens);
  return workspace_bytes(all, 1) <= workspace_bytes(few, 1) ? all.chunk : few.chunk;
}

size_t workspace_bytes(const LinearCrossEntropy& call, int threads) {
  check(call);
  Workspace workspace(nullptr);
  if (call.type == Number::kF32) {
    take_loss_scratch<float>(call, threads, workspace);
  } else {
    take_loss_scratch<Bf16>(call, threads, workspace);
  }
  return workspace.bytes();
}

void linear_cross_entropy(const LinearCrossEntropy& call, const MicroKernels& kernels, int threads, void* workspace) {
  check(call);
  for (int64_t i = 0; i < call.tokens; ++i) {
    const int64_t target = call.targets[i];
    USER_CHECK(target == call.ignore_index || (target >= 0 && target < call.classes),
               "target {} of token {} is not a class: there are {} (ignored: {})", target, i, call.classes,
               call.ignore_index);
  }
  if (call.type == Number::kF32) {
    Sweep<float>(call, kernels, threads, workspace).run();
  } else {
    Sweep<Bf16>(call, kernels, threads, workspace).run();
  }
}

}  // namespace stepc::blocked
