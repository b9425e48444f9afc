#include "engine/plan/raising_calls.h"

#include <algorithm>
#include <string_view>

#include "ir/agree.h"
#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"
#include "ops/rules/aten_rules.h"

namespace stepc {

namespace {

template <size_t kCount>
bool is_one_of(std::string_view op, const std::string_view (&names)[kCount]) {
  return std::ranges::find(names, op) != std::end(names);
}

// The op's name without overload and without the suffix of its in-place form.
std::string_view base_of(std::string_view op) {
  op = op.substr(0, op.find('.'));
  return op.ends_with('_') ? op.substr(0, op.size() - 1) : op;
}

// Ops of the table whose ATen kernels check indices, classes, probabilities or spreads.
constexpr std::string_view kLooksAtData[] = {"aten::index",
                                             "aten::index_select",
                                             "aten::index_add",
                                             "aten::index_copy",
                                             "aten::index_put",
                                             "aten::gather",
                                             "aten::scatter",
                                             "aten::embedding",
                                             "aten::_index_put_impl",
                                             "aten::scatter_add",
                                             "aten::bernoulli",
                                             "aten::normal",
                                             "aten::nll_loss",
                                             "aten::nll_loss_forward",
                                             "aten::nll_loss2d_forward",
                                             "aten::multinomial",
                                             "aten::poisson",
                                             "aten::binomial",
                                             "aten::binary_cross_entropy"};
constexpr std::string_view kDivisions[] = {"aten::floor_divide", "aten::remainder", "aten::fmod", "aten::div"};
// Ops with neither a row nor a rule that accept any numbers.
constexpr std::string_view kTakesAnything[] = {"aten::native_batch_norm", "aten::batch_norm_update_stats"};
// Factorisations whose kernels check their own convergence and raise if they do not converge.
constexpr std::string_view kFactorisations[] = {
    "aten::_linalg_eigh", "aten::linalg_eig",   "aten::linalg_eigvals", "aten::_linalg_eigvals",
    "aten::_linalg_svd",  "aten::linalg_lstsq", "aten::cholesky",       "aten::cholesky_inverse"};

bool is_described(std::string_view op) {
  return find_aten_row(op).row != nullptr || is_one_of(base_of(op), kTakesAnything) ||
         std::ranges::find(aten_rules(), op, &AtenRule::op) != aten_rules().end();
}

bool reads_tensors(const Call& call) {
  bool reads = false;
  for_each_value(call.args, [&](ValueId value) { reads = reads || value.valid(); });
  return reads;
}

bool divides_integers(const Trace& trace, const Call& call) {
  bool integers = true;
  const auto look = [&](ValueId id) { integers = integers && !is_floating(trace.values[id.index()].dtype); };
  for_each_value(call.results, look);
  return is_one_of(base_of(call.op), kDivisions) && integers;
}

bool may_raise(const Trace& trace, const Call& call) {
  return is_one_of(base_of(call.op), kLooksAtData) || divides_integers(trace, call) ||
         (!is_described(call.op) && reads_tensors(call) && !is_view(trace, call));
}

// Whether the op's row has operands of indices.
bool looks_at_indices(const std::string& op) {
  const OpDef* const row = find_op(op);
  return row != nullptr && row->index_use.has_value();
}

}  // namespace

RaisingCalls::RaisingCalls(const Trace& trace) {
  std::vector<bool> is_optimizers(trace.calls.size(), false);
  for (const HostEvent& event : trace.events)
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) is_optimizers[c] = true;
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    const Call& call = trace.calls[c];
    // A backward pass uses indices that the forward pass has checked, but it factorises matrices of its own.
    const bool looks = call.phase != Phase::kBackward && !is_optimizers[c];
    if (!is_one_of(call.op, kFactorisations) && !(looks && may_raise(trace, call))) continue;
    calls_.emplace(c);
    ops_.insert(call.op);
  }
}

bool RaisingCalls::include(const Instruction& instruction) const {
  if (instruction.call.valid()) return include(instruction.call);
  if (is_one_of(instruction.op, kFactorisations)) return true;
  if (instruction.source.phase == Phase::kBackward) return false;
  return ops_.contains(instruction.op) || looks_at_indices(instruction.op);
}

}  // namespace stepc
