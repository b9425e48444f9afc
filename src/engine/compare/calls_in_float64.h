// CallsInFloat64: while it lives, every ATen call of its thread is made a second time in float64, on the same operands,
// and a result that is further from that than rounding explains is replaced by it. So recorded calls come as near to
// what the step means as their types allow, each on its own: where eager sums a gradient in bf16 or a norm in f32, it
// errs more than a fused kernel does. Holds one call's operands in float64 at a time.
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
