// The op families, one file each. Private to ops/; everyone else asks op_families() or find_op().
#pragma once

#include "ops/op_def.h"

namespace stepc {

OpFamily elementwise_ops();
OpFamily view_ops();
OpFamily reduce_ops();
OpFamily matmul_ops();
OpFamily norm_ops();
OpFamily attention_ops();
OpFamily index_ops();
OpFamily random_ops();
OpFamily loss_ops();
OpFamily optimizer_ops();
OpFamily collective_ops();

}  // namespace stepc
