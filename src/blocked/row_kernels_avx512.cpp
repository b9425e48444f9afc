// Compiled with AVX-512 flags (src/CMakeLists.txt); nothing in here may run before micro_kernels.h said that it can.
#include "blocked/row_kernels_impl.h"

namespace stepc::blocked {

RowTable avx512_rows() { return row_table(); }

}  // namespace stepc::blocked
