// A rule tells stepc about an operator of the program (torch.library, TORCH_LIBRARY) what stepc knows about PyTorch's:
// its calls compute their results only from their arguments, so a plan may make them; their cost; and how they may be
// split. Without a rule only the step's own code calls the operator.
//
//   stepc::op_rule("my::product", {.flops = [](const OpUse& use) { return 2.0 * use.count(0) * use.size(1, 1); },
//                                  .sharding = "m k, k n -> m n; k: sum"})
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/call_rule.h"
#include "ir/graph.h"
#include "ir/trace.h"

namespace stepc {

// One call, described by types.
struct OpUse {
  // Its tensor arguments in order: also each tensor of a list, and numbers that arrive as tensors; not those left out.
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  std::vector<Arg> args;  // ValueId k: operand k
  [[nodiscard]] int64_t size(size_t operand, size_t dim) const { return operands.at(operand).shape.at(dim); }
  [[nodiscard]] int64_t count(size_t operand) const { return element_count(operands.at(operand).shape); }
};

// What a rule may say about an operator. Every part is optional.
struct OpRuleParts {
  std::function<std::vector<Shape>(const OpUse&)> shapes = {};  // of the results; none: those of the recorded calls
  std::function<double(const OpUse&)> flops = {};               // none: 0
  std::function<double(const OpUse&)> bytes = {};               // bytes moved; none: operands and results, once each
  std::string sharding = {};                                    // in the notation of DimNames; empty: never split
};

struct OpRule {
  std::string op;  // "my::product", "my::product.overload"
  OpRuleParts parts;
  std::optional<DimNames> dims;
};
using OpRules = std::vector<OpRule>;

// Throws UserError for an operator that does not exist, is PyTorch's, or returns results that are not its own, and for
// a sharding that the operator cannot have.
OpRule op_rule(std::string op, OpRuleParts parts);

// nullptr if there is none.
const OpRule* find_rule(const OpRules& rules, std::string_view op);
// Whether the operator is PyTorch's or stepc's: its reads and writes are known.
bool is_known_operator(std::string_view op);

// Writes the rules' statements into the calls of a recording. Throws UserError that names the operator if a statement
// contradicts the call.
void apply_rules(const OpRules& rules, Trace& trace);

}  // namespace stepc
