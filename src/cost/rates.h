// Rates: a machine's speed for each kind of work, as data. `stepc calibrate` measures them, and plan/price.h prices a
// Schedule with them. Physical quantities only: none is fitted to a model. For all threads of the Target together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"

namespace stepc {

// The owner of a kernel: stepc (blocked/) or LibTorch.
enum class KernelOwner : uint8_t { kBlocked, kLibrary };
std::string_view name_of(KernelOwner owner);

// The rate of memory that was last touched `bytes` of traffic ago: out of a cache, or out of memory.
struct StreamRate {
  double bytes = 0;
  double bytes_per_second = 0;
  bool operator==(const StreamRate&) const = default;
};

// The product of an (rows, inner) and an (inner, columns) matrix, or of `batch` such pairs in one call.
struct MatmulRate {
  KernelOwner owner = KernelOwner::kLibrary;
  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0, inner = 0;
  double flops_per_second = 0;
  int64_t batch = 1;
  bool operator==(const MatmulRate&) const = default;
};

// Attention of `length` queries to as many keys, with heads of `width` elements; a blocked kernel's includes its
// padding.
struct AttentionRate {
  KernelOwner owner = KernelOwner::kLibrary;
  DType dtype = DType::kF32;
  bool backward = false;
  int64_t length = 0, width = 0;
  double flops_per_second = 0;
  bool operator==(const AttentionRate&) const = default;
};

// A convolution that makes `channels` channels of `pixels` pixels, each element a sum of `inner` products (channels
// times places of the kernel); depthwise: of its own channel only.
struct ConvolutionRate {
  DType dtype = DType::kF32;
  bool backward = false, depthwise = false;
  int64_t pixels = 0, channels = 0, inner = 0;
  double flops_per_second = 0;
  bool operator==(const ConvolutionRate&) const = default;
};

// A call of LibTorch, by its schema's name ("aten::add.Tensor"), or an op of the table that such a call computes, with
// tensors of this type, or of f32 if it has none. For a call on a list: of each of its tensors.
struct CallRate {
  std::string op;
  DType dtype = DType::kF32;
  double seconds = 0;           // fixed, among other calls
  double bytes_per_second = 0;  // in addition, for all its operands and results
  bool operator==(const CallRate&) const = default;
};

// A level of the network between devices: the connection of any two within a group of `devices` neighbours that no
// lower level joins.
struct Link {
  std::string name;             // "nvlink"
  int64_t devices = 0;          // of a group; a multiple of the level below; 0: all devices
  double bytes_per_second = 0;  // each way, of each device, while all the others send too
  double latency_seconds = 0;   // until the first byte arrives
  bool operator==(const Link&) const = default;
};

std::vector<StreamRate> default_streams();
std::vector<MatmulRate> default_matmuls();
std::vector<AttentionRate> default_attentions();
std::vector<ConvolutionRate> default_convolutions();

// The defaults were measured on two cores of a server's CPU with AVX-512.
struct Rates {
  // Fixed cost of one, among others.
  double instruction_seconds = 5e-7;     // a generated or blocked kernel
  double aten_call_seconds = 2.5e-6;     // a call into LibTorch that `calls` does not name
  double aten_reduction_seconds = 2e-6;  // in addition: a sum or mean,
  double aten_norm_seconds = 4e-6;       // a softmax or layer norm,
  double aten_index_seconds = 5e-6;      // a read or write at indices
  double fork_seconds = 4e-6;            // of sharing a kernel between threads, which then wait for each other
  double input_seconds = 5e-8;           // of binding a tensor of the program
  double host_number_seconds = 3e-7;     // of passing on a number of the program's host code between kernels
  double loss_seconds = 1e-5;            // of a linear layer with its cross-entropy, one kernel
  double seed_seconds = 8e-6;            // of seeding the kernels' random numbers from the program's generator
  // Generated kernels.
  double lane_ops_per_second = 6e10;       // f32 arithmetic in vector loops
  double lane_roots_per_second = 6e9;      // f32 divisions and square roots there
  double scalar_ops_per_second = 6e9;      // any arithmetic outside vector loops
  double function_calls_per_second = 1e8;  // elementary functions of f64
  double gathers_per_second = 3e9;         // elements read one by one: by an index, or across a stride
  // LibTorch's kernels without a table below.
  double aten_flops_per_second = 1.5e10;          // elementwise arithmetic, as the op table counts it
  double aten_roots_per_second = 4e9;             // square roots
  double aten_strided_bytes_per_second = 6e9;     // copies and arithmetic across strides
  double aten_rows_per_second = 5e7;              // copies whose elements are contiguous only in short rows
  double aten_reduction_bytes_per_second = 1e10;  // sums and norms
  double aten_norm_bytes_per_second = 2e10;       // softmax, layer norm: rows read more than once
  double aten_pooling_bytes_per_second = 5e9;     // the largest of windows that overlap
  double aten_scatter_bytes_per_second = 2e9;     // rows added at indices
  double aten_draws_per_second = 2e8;             // random numbers
  // Between neighbours of a ring of ranks. Calibration does not measure them; the defaults are those of a network of 10
  // Gbit/s.
  double link_latency_seconds = 5e-5;  // until the first byte arrives
  double link_bytes_per_second = 1e9;  // each way
  std::vector<Link> links = {};        // levels of a cluster, the innermost first; none: the two rates above hold
  std::vector<StreamRate> streams = default_streams();  // by bytes
  std::vector<MatmulRate> matmuls = default_matmuls();
  std::vector<AttentionRate> attentions = default_attentions();
  std::vector<ConvolutionRate> convolutions = default_convolutions();
  std::vector<CallRate> calls = {};
  bool operator==(const Rates&) const = default;
};

// Between the points of a table logarithms are interpolated. Above its upper end the nearest point's rate holds, below
// its lower end the nearest point's time, because a kernel has a start and fills vectors and tiles. Throws
// InternalError for a table without a row of the kind: its maker must provide one.
double stream_rate(const Rates& rates, double bytes);
// Of a call on one pair of matrices.
double matmul_rate(const Rates& rates, KernelOwner owner, DType dtype, int64_t rows, int64_t columns, int64_t inner);
// Of a call on many pairs; nothing: the table has no such row.
std::optional<double> batched_matmul_rate(const Rates& rates, DType dtype, int64_t rows, int64_t columns,
                                          int64_t inner);
double attention_rate(const Rates& rates, KernelOwner owner, DType dtype, bool backward, int64_t length, int64_t width);
double convolution_rate(const Rates& rates, DType dtype, bool backward, bool depthwise, int64_t pixels,
                        int64_t channels, int64_t inner);

}  // namespace stepc
