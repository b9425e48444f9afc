#include "cost/features.h"

#include "base/text.h"

namespace stepc {

std::string to_text(const Features& features) {
  if (features.sm > 0) return str("cuda sm_{}", features.sm);
  std::string text;
  for (const auto& [name, there] : kFeatureNames)
    if (features.*there) text += (text.empty() ? "" : ", ") + std::string(name);
  return text.empty() ? "none" : text;
}

MatmulRule matmul_rule(const Features& features) {
  return {features.bf16 && features.avx512, features.f32 && features.avx512 && !features.intel};
}

}  // namespace stepc
