#include "engine/verify/verify_dry.h"

#include <algorithm>

#include "aten/cpu_hook.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "engine/compare/sketch.h"
#include "engine/verify/remains.h"
#include "engine/verify/rule_check.h"
#include "runtime/arena.h"

namespace stepc {

namespace {

// How much memory the plain Graph may take above the plan, as a share of all memory that the step then holds: it writes
// no gradient into the memory of its parameter. A run may take 5 % more in all; compiling takes 3 to 4 % in a small
// run, half of it oneDNN's descriptors of the plain Graph's calls.
constexpr double kSlack = 0.01;

// The results of a dry run, listed like those of a real run.
std::vector<Named> left_by_dry(const Remains& remains, const Plan::DryOutcome& run) {
  return remains.left_by(*run.result, run.left, /*by_bits=*/false);
}

// Runs the step eagerly and undoes it.
std::string difference_from_eager(const Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                                  const std::function<StepOutput()>& step, const Remains& remains,
                                  Plan::DryOutcome& dry) {
  const std::vector<OwnedKey> keys = program.keys();
  const auto is_gradient = [&](size_t k) { return k < keys.size() && keys[k].owner == Owner::kGradient; };
  for (size_t k = 0; k < tensors.size(); ++k)
    if (!dry.left[k].defined() && !is_gradient(k)) dry.left[k] = Sketch(tensors[k]).values();
  Undo undo(&program, plan.changed(tensors), plan.generators(program));
  undo.add_gradients(keys, tensors);
  std::string difference;
  run_and_restore(undo, [&] {
    StepOutput output = step();
    for (at::Tensor& one : output.tensors) one = Sketch(one).values();
    std::vector<at::Tensor> now;
    program.append_tensors(now);
    now.insert(now.end(), tensors.begin() + static_cast<ptrdiff_t>(keys.size()), tensors.end());
    for (at::Tensor& one : now) one = Sketch(one).values();
    const auto rebound = [&](const Rebinding& rebinding) {
      const auto found = std::ranges::find(keys, OwnedKey{rebinding.owner, rebinding.key});
      return found == keys.end() ? at::Tensor() : now[static_cast<size_t>(found - keys.begin())];
    };
    const std::vector<Named> eager = remains.of(output, now, rebound, /*by_bits=*/false);
    difference = difference_in_values(left_by_dry(remains, dry), eager, plan.graph()->narrowest);
  });
  program.refresh();
  return difference;
}

}  // namespace

std::string to_text(const DryVerification& v) {
  const std::string plain = human_bytes(v.plain_bytes);
  const std::string eager = human_bytes(v.eager_bytes);
  std::string text = v.with_plain ? str("with the plain graph, one ATen call a node, in {}", plain)
                                  : str("not with the plain graph, which takes {}", plain);
  return text + (v.with_eager ? str("; with eager in {}", eager) : str("; not with eager, which takes {}", eager));
}

uint64_t most_of_plain(const Schedule& planned) {
  const auto all = static_cast<double>(planned.peak_bytes() + planned.input_bytes());
  return planned.peak_bytes() + static_cast<uint64_t>(kSlack * all);
}

DryVerification verify_dry(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, const MemoryBudget& budget) {
  DryVerification v;
  const Remains remains(plan, program, tensors);
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  const uint64_t planned = plan.schedule().peak_bytes();
  const uint64_t program_bytes = plan.schedule().input_bytes();
  // The plain plan is made before the arena has its pages, because planning takes memory too.
  const uint64_t most = most_of_plain(plan.schedule());
  v.plain_bytes = plan.make_plain(most);
  release_free_memory();
  v.with_plain = v.plain_bytes <= most || v.plain_bytes + program_bytes <= (has_budget ? budget.bytes : usable_bytes());
  Plan::DryOutcome plain;
  std::string plain_error;
  if (v.with_plain) {
    try {
      plain = plan.run_dry(program, tensors);
    } catch (const std::exception& error) {
      plain_error = str("an error: {}", first_line(error.what()));
    }
  }
  plan.drop_plain();
  if (v.plain_bytes > planned) release_idle_arenas();  // the plan's own run begins with pages of its own
  release_free_memory();

  Plan::DryOutcome fused;
  try {
    const RuleCheck rules(plan.trace());
    fused = plan.run_dry(program, tensors);
    v.wrong_rule = rules.wrong();
  } catch (const std::exception& error) {
    v.outcome.result.emplace();
    v.difference = str("an error: {}", first_line(error.what()));
    v.with = "a step without one";
    return v;
  }
  v.outcome = fused;
  if (!fused.result) return v;
  if (v.with_plain) {
    v.with = "the plain graph";
    v.difference = plain_error;
    if (plain_error.empty())
      v.difference = !plain.result ? "what it decides"
                                   : difference_in_values(left_by_dry(remains, fused), left_by_dry(remains, plain),
                                                          plan.graph()->narrowest);
  }

  uint64_t copies = 0;
  for (const at::Tensor& tensor : plan.changed(tensors))
    if (tensor.defined()) copies += tensor.nbytes();
  v.eager_bytes = plan.eager_peak_bytes + copies;
  v.with_eager = v.difference.empty() && !plan.has_fp8() && !draws(plan.schedule()) &&
                 (v.eager_bytes <= planned || (has_budget && v.eager_bytes + program_bytes <= budget.bytes));
  if (!v.with_eager) return v;
  v.with = "eager";
  v.difference = difference_from_eager(plan, program, tensors, step, remains, fused);
  return v;
}

}  // namespace stepc
