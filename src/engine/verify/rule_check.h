// RuleCheck: while it lives, it checks the calls of the program's own operators on its thread against their rules, as
// in the first run of a plan. A call must not change its operands. If a rule says that a call may be split, the check
// also makes it in parts, in two along each factor, one after the other, and the parts put together must equal the
// whole. Each kind of call is checked once.
#pragma once

#include <memory>
#include <string>

#include "ir/trace.h"

namespace stepc {

class RuleCheck {
 public:
  // Of the calls of `trace`, which must outlive this.
  explicit RuleCheck(const Trace& trace);
  ~RuleCheck();
  RuleCheck(const RuleCheck&) = delete;
  RuleCheck& operator=(const RuleCheck&) = delete;

  // One sentence on the first rule that is wrong; empty: none is.
  [[nodiscard]] std::string wrong() const;

  struct Calls;

 private:
  std::unique_ptr<Calls> calls_;  // nullptr: nothing is to be split
};

}  // namespace stepc
