#include "interp/kernels.h"

namespace stepc {

namespace {

std::vector<Array> matmul(const std::vector<Array>& in, const Attrs& attrs, const std::vector<TensorType>& types) {
  const Shape& a = in[0].type.shape;
  const size_t rank = a.size();
  const bool ta = attrs.get<bool>("transpose_a");
  const bool tb = attrs.get<bool>("transpose_b");
  const int64_t m = types[0].shape[rank - 2];
  const int64_t n = types[0].shape[rank - 1];
  const int64_t k = a[rank - (ta ? 2 : 1)];
  Array out(types[0]);
  const int64_t batches = m * n == 0 ? 0 : out.count() / (m * n);
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double real = 0;
        uint64_t integer = 0;
        for (int64_t l = 0; l < k; ++l) {
          const int64_t x = batch * m * k + (ta ? l * m + i : i * k + l);
          const int64_t y = batch * k * n + (tb ? j * k + l : l * n + j);
          if (out.is_real())
            real += in[0].reals[static_cast<size_t>(x)] * in[1].reals[static_cast<size_t>(y)];
          else
            integer += static_cast<uint64_t>(in[0].integer(x)) * static_cast<uint64_t>(in[1].integer(y));
        }
        const int64_t to = (batch * m + i) * n + j;
        if (out.is_real())
          out.set(to, real);
        else
          out.set(to, static_cast<int64_t>(integer));
      }
  return {out};
}

}  // namespace

const KernelTable& matmul_kernels() {
  static const KernelTable kTable = {{"matmul", matmul}};
  return kTable;
}

}  // namespace stepc
