#include "blocked/row_kernels_impl.h"

namespace stepc::blocked {

RowTable generic_rows() { return row_table(); }

}  // namespace stepc::blocked
