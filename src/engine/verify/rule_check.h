// RuleCheck: while it lives, calls of the program's own operators on its thread are held to what their rules say, as
// the first run of a plan is: they leave their operands as they are, and where a rule says that they may be split, they
// are made in parts, too, in two along each factor, one after the other, which put together must be the whole. Each
// kind of call is looked at once.
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
