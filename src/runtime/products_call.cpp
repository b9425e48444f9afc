#include "runtime/products_call.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ir/alignment.h"
#include "loops/element_writer.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using blocked::ceil_div;
using blocked::kTileColumns;
using blocked::kTileRows;

constexpr size_t kMostBuffers = 64;  // of a tail's kernel

struct TileSize {
  int64_t rows, columns;
};

static_assert(kMostProducts <= blocked::kMostProducts);

// Tiles are whole, or what is left at the end of the rows, of the columns, or of both.
std::array<TileSize, 4> tile_sizes(const Shape& result) {
  const auto last = [](int64_t all, int64_t tile) { return all > tile ? all % tile : 0; };
  const TileSize whole{std::min(result[0], kTileRows), std::min(result[1], kTileColumns)};
  const TileSize rest{last(result[0], kTileRows), last(result[1], kTileColumns)};
  return {{whole, {rest.rows, whole.columns}, {whole.rows, rest.columns}, rest}};
}
size_t tile_kind(bool whole_rows, bool whole_columns) { return (whole_rows ? 0U : 1U) + (whole_columns ? 0U : 2U); }

const Shape& result_shape(const Graph& group) { return group.shape(group.nodes.front().outputs[0]); }

size_t place_of(const Graph& group, TensorId input) {
  return static_cast<size_t>(std::ranges::find(group.inputs, input, &GraphInput::tensor) - group.inputs.begin());
}

at::Tensor stand_in(const Graph& group, const GraphInput& input) {
  const TensorType& type = group.type(input.tensor);
  return at::empty_strided(type.shape, strides_of(group, input),
                           at::TensorOptions(scalar_type_of(type.dtype)).device(at::kMeta));
}

}  // namespace

std::vector<LoopProgram> tail_programs(const Graph& group) {
  std::vector<LoopProgram> programs;
  if (!has_tail(group)) return programs;
  for (const TileSize& size : tile_sizes(result_shape(group)))
    if (size.rows > 0 && size.columns > 0)
      programs.push_back(lower(product_tail(group, size.rows, size.columns, kTileColumns)));
  return programs;
}

// What the tiles of one run share.
struct ProductsCall::TileRun {
  const ProductsCall* call;
  std::array<std::byte*, kMostBuffers> buffers = {};  // of the tail: its inputs behind the products, then its outputs
  std::byte* scratch;                                 // of all workers' kernels
  float* shares;
};

ProductsCall::ProductsCall(const Graph& group, KernelCompiler& compiler, const blocked::MicroKernels& kernels,
                           int threads)
    : kernels_(kernels), threads_(threads) {
  std::vector<at::Tensor> inputs;
  for (const GraphInput& input : group.inputs) inputs.push_back(stand_in(group, input));
  for (const Node& node : group.nodes) {
    if (!is_product(node)) break;
    operands_.push_back({place_of(group, node.inputs[0]), place_of(group, node.inputs[1])});
    const std::optional<BoundMatmul> bound =
        bind_matmul(node, {inputs[operands_.back().left], inputs[operands_.back().right]}, kernels);
    USER_CHECK(bound.has_value(), "no blocked product takes these operands");
    products_.push_back(*bound);
  }
  if (has_tail(group)) make_tail(group, compiler);
  const std::vector<blocked::Product> products = products_without_data();
  matmul_bytes_ = aligned(blocked::workspace_bytes(matmul_of(products), threads_));
}

void ProductsCall::make_tail(const Graph& group, KernelCompiler& compiler) {
  const std::array<TileSize, 4> sizes = tile_sizes(result_shape(group));
  tail_ = product_tail(group, sizes[0].rows, sizes[0].columns, kTileColumns);
  USER_CHECK(products_.size() + tail_->inputs.size() + tail_->outputs.size() <= kMostBuffers,
             "{} tensors are too many to finish products with", group.inputs.size() + group.outputs.size());
  size_t next = 0;
  const std::vector<LoopProgram> programs = tail_programs(group);
  for (size_t kind = 0; kind < sizes.size(); ++kind) {
    if (sizes[kind].rows == 0 || sizes[kind].columns == 0) continue;
    tail_kernels_[kind] = compiler.compile(programs[next++]);
    worker_bytes_ = std::max(worker_bytes_, aligned(static_cast<uint64_t>(tail_kernels_[kind]->scratch_bytes)));
  }
  const auto shares = static_cast<uint64_t>(std::ranges::count_if(tail_->outputs, &TileBuffer::is_share));
  shares_bytes_ = aligned(shares * static_cast<uint64_t>(tiles()) * sizeof(float));
}

std::vector<blocked::Product> ProductsCall::products_without_data() const {
  std::vector<blocked::Product> products;
  for (const BoundMatmul& bound : products_) products.push_back({bound.n, bound.b, false, {}, {}});
  return products;
}

blocked::Matmul ProductsCall::matmul_of(const std::vector<blocked::Product>& products) const {
  const BoundMatmul& first = products_.front();
  blocked::Matmul call{first.type, 1, first.m, first.k, first.a, products};
  if (tail_) {
    call.finish = [](std::span<const blocked::TileRef> tiles, int worker, void* context) {
      const auto& run = *static_cast<const TileRun*>(context);
      run.call->finish(tiles, worker, run);
    };
  }
  return call;
}

int64_t ProductsCall::tiles() const {
  return ceil_div(products_[0].m, kTileRows) * ceil_div(products_[0].n, kTileColumns);
}

void ProductsCall::run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                       std::byte* scratch) const {
  std::vector<blocked::Product> products = products_without_data();
  for (size_t p = 0; p < products.size(); ++p) {
    products[p].b.data = inputs[operands_[p].right].const_data_ptr();
    if (!tail_) products[p].c = {outputs[p].mutable_data_ptr(), products_[p].type, products_[p].n};
  }
  blocked::Matmul call = matmul_of(products);
  call.a.data = inputs[operands_[0].left].const_data_ptr();
  TileRun run{.call = this, .scratch = nullptr, .shares = nullptr};
  if (tail_) {
    run.scratch = scratch + matmul_bytes_;
    run.shares = reinterpret_cast<float*>(run.scratch + static_cast<uint64_t>(threads_) * worker_bytes_);  // NOLINT
    size_t next = 0;
    for (const TileBuffer& buffer : tail_->inputs)  // NOLINTNEXTLINE: the kernel only reads inputs
      run.buffers[next++] = static_cast<std::byte*>(const_cast<void*>(inputs[buffer.place].const_data_ptr()));
    for (const TileBuffer& buffer : tail_->outputs)
      run.buffers[next++] = static_cast<std::byte*>(outputs[buffer.place].mutable_data_ptr());
    call.context = &run;
  }
  blocked::matmul(call, kernels_, threads_, scratch);
  if (shares_bytes_ > 0) add_up_shares(outputs, run.shares);
}

const Kernel& ProductsCall::kernel_for(const blocked::TileRef& tile) const {
  const BoundMatmul& first = products_.front();
  return *tail_kernels_[tile_kind(tile.rows == std::min(first.m, kTileRows),
                                  tile.columns == std::min(first.n, kTileColumns))];
}

void ProductsCall::finish(std::span<const blocked::TileRef> tiles, int worker, const TileRun& run) const {
  const blocked::TileRef& at = tiles.front();
  std::array<void*, kMostBuffers> buffers = {};
  size_t next = 0;
  for (const blocked::TileRef& tile : tiles) buffers[next++] = tile.values;
  size_t from = 0;
  const Graph& graph = tail_->tile;
  const auto moved = [&](const TileBuffer& buffer, TensorId tensor) {
    const int64_t elements = at.row * buffer.row_stride + at.column * buffer.column_stride;
    return run.buffers[from++] + elements * size_of(graph.type(tensor).dtype);
  };
  for (size_t i = 0; i < tail_->inputs.size(); ++i)
    buffers[next++] = moved(tail_->inputs[i], graph.inputs[tiles.size() + i].tensor);
  float* share = run.shares + at.row / kTileRows * ceil_div(products_[0].n, kTileColumns) + at.column / kTileColumns;
  for (size_t o = 0; o < tail_->outputs.size(); ++o) {
    void* output = moved(tail_->outputs[o], graph.outputs[o].tensor);
    if (tail_->outputs[o].is_share) {
      output = share;
      share += this->tiles();
    }
    buffers[next++] = output;
  }
  for (const KernelPhase& phase : kernel_for(at).phases)
    phase.run(buffers.data(), 0, phase.items, run.scratch + static_cast<uint64_t>(worker) * worker_bytes_);
}

// In the order of the tiles, so the bits do not depend on threads.
void ProductsCall::add_up_shares(const std::vector<at::Tensor>& outputs, const float* shares) const {
  for (const TileBuffer& buffer : tail_->outputs) {
    if (!buffer.is_share) continue;
    double sum = 0;
    for (int64_t tile = 0; tile < tiles(); ++tile) sum += static_cast<double>(*shares++);
    *outputs[buffer.place].mutable_data_ptr<float>() = static_cast<float>(sum);
  }
}

bool ProductsCall::may_share(size_t input, size_t output) const {
  const bool is_operand = std::ranges::any_of(
      operands_, [&](const Operands& operands) { return operands.left == input || operands.right == input; });
  if (is_operand || !tail_) return false;
  const auto read = std::ranges::find(tail_->inputs, input, &TileBuffer::place) - tail_->inputs.begin();
  const TileBuffer& from = tail_->inputs[static_cast<size_t>(read)];
  const TileBuffer& to = tail_->outputs[output];
  if (from.row_stride != to.row_stride || from.column_stride != to.column_stride) return false;
  const std::pair<uint32_t, uint32_t> pair(static_cast<uint32_t>(products_.size() + static_cast<size_t>(read)),
                                           static_cast<uint32_t>(output));
  return std::ranges::all_of(tail_kernels_, [&](const std::shared_ptr<const Kernel>& kernel) {
    return kernel == nullptr || std::ranges::find(kernel->in_place, pair) != kernel->in_place.end();
  });
}

}  // namespace stepc
