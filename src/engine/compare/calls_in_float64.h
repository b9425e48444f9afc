// CallsInFloat64: while it lives, it repeats every ATen call of its thread in float64 on the same operands, and
// replaces a result that is further from that than rounding explains. So each recorded call comes as near to the
// meaning of the step as its types allow: where eager sums a gradient in bf16 or a norm in f32, it errs more than a
// fused kernel does. Holds one call's operands in float64 at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepc {

class CallsInFloat64 {
 public:
  CallsInFloat64();
  ~CallsInFloat64();
  CallsInFloat64(const CallsInFloat64&) = delete;
  CallsInFloat64& operator=(const CallsInFloat64&) = delete;

  struct Replaced {
    std::string op;
    double error = 0;  // of what the call gave, relative to float64, in the root mean square
  };
  [[nodiscard]] const std::vector<Replaced>& replaced() const;

  struct Calls;

 private:
  std::unique_ptr<Calls> calls_;
};

}  // namespace stepc
