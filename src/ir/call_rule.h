// CallRule: what a program says of one call of an operator of its own (stepc::op_rule), its functions applied to this
// call's operands. Plain data that goes with the call from the Trace over the Graph to the Schedule.
//
//   rule flops 4096.0 bytes 768.0 dims "m k, k n -> m n; k: sum"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepc {

// Names of the dimensions of tensor operands and results, as an einsum has them: what is split along a name is split
// wherever it stands. "m k, k n -> m n; k: sum" is a product of matrices, and "b _ -> b _" works on rows: "_" is never
// split. A name that is missing on a result says how parts of that are combined: sum, max or min. Sizes are no part of
// it: the same text holds for a shard of the call.
struct DimNames {
  enum class Combine : uint8_t { kSum, kMax, kMin };
  using Names = std::vector<std::string>;
  std::vector<Names> operands, results;
  std::vector<std::pair<std::string, Combine>> combined;
  bool operator==(const DimNames&) const = default;
};
std::string to_text(const DimNames& dims);
// Throws UserError, one line, for what has no such form or cannot be split so.
DimNames parse_dim_names(std::string_view text);

struct CallRule {
  double flops = 0;
  std::optional<double> bytes;   // that it moves; none: operands read and results written once
  std::optional<DimNames> dims;  // none: never split
  bool operator==(const CallRule&) const = default;
};

class TextCursor;
std::string to_text(const CallRule& rule);
// What stands behind "rule ".
CallRule parse_call_rule(TextCursor& in);

}  // namespace stepc
