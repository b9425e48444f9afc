// RuleCheck: while it lives, calls of the program's own operators on its thread are made in parts, too, as their rules
// say that they may be split: in two along each factor, one after the other. Put together, the parts must be the whole,
// which the first run of a plan is held to. Each kind of call is looked at once.
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
