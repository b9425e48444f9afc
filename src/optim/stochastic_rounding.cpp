#include "optim/stochastic_rounding.h"

#include "base/check.h"

namespace stepc::optim {

// A bfloat16 is the upper half of a float32. Uniform noise below that half carries into it with the probability of the
// fraction that is cut off; sign and magnitude being separate, this holds for negative numbers too.
at::Tensor stochastically_rounded(const at::Tensor& values) {
  INTERNAL_CHECK(values.scalar_type() == at::kFloat, "{}", at::toString(values.scalar_type()));
  constexpr int64_t kLowerHalf = 0xFFFF;
  const at::Tensor noise = at::randint(kLowerHalf + 1, values.sizes(), values.options().dtype(at::kInt));
  const at::Tensor carried = (values.view(at::kInt) + noise).bitwise_and(~kLowerHalf).view(at::kFloat);
  return at::where(values.isfinite(), carried, values).to(at::kBFloat16);
}

}  // namespace stepc::optim
