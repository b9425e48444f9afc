#include "engine/verify_replay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/machine_memory.h"
#include "engine/sketch.h"
#include "engine/tensor_hash.h"
#include "engine/value_distance.h"
#include "ir/agree.h"

namespace stepc {

namespace {

uint64_t state_hash(const at::Generator& generator) {
  const std::string state = to_bytes(read_generator(generator));
  return hash_bytes(std::as_bytes(std::span(state)));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// One thing that a step leaves behind: its bits, and its values where only those are compared.
struct Named {
  std::string what;
  std::string group;  // what it is compared in size with: "parameter", "optimizer state exp_avg"
  std::optional<Owner> owner;
  std::string key;  // of the owner's
  uint64_t hash = 0;
  at::Tensor values;
};

// Everything that a step leaves behind, in one order for both runs.
class Remains {
 public:
  Remains(const Plan& plan, const Program& program, size_t tensors)
      : plan_(plan), program_(program), count_(tensors), by_bits_(plan.graph() == nullptr) {}

  // What is compared by values is not copied: the next run writes to the same tensors.
  std::vector<Named> of(const StepOutput& output, const std::vector<at::Tensor>& tensors,
                        const std::function<at::Tensor(const Rebinding&)>& rebound) const {
    std::vector<Named> out;
    const auto add = [&](std::string what, std::string group, const at::Tensor& tensor, std::optional<Owner> owner = {},
                         const std::string& key = {}) {
      Named& one = out.emplace_back(Named{std::move(what), std::move(group), owner, key, 0, {}});
      if (by_bits_)
        one.hash = hash_of(tensor);
      else if (tensor.defined())
        one.values = tensor.detach();
    };
    const auto add_owned = [&](Owner owner, const std::string& key, const at::Tensor& tensor) {
      add(str("{} '{}'", name_of(owner), key), group_of(owner, key), tensor, owner, key);
    };
    for (size_t o = 0; o < output.tensors.size(); ++o)
      add(str("returned value {}", o), str("returned {}", o), output.tensors[o]);
    const std::vector<OwnedKey>& keys = program_.keys();
    for (size_t k = 0; k < count_; ++k) {
      const bool batch = k >= keys.size();
      if (batch)
        add(str("batch tensor {}", k - keys.size()), str("batch {}", k), tensors[k]);
      else if (keys[k].owner != Owner::kGradient)
        add_owned(keys[k].owner, keys[k].key, tensors[k]);
    }
    for (const Rebinding& rebinding : plan_.trace().rebindings)
      add_owned(rebinding.owner, rebinding.key, rebound(rebinding));
    if (!by_bits_) return out;
    out.push_back({"random generator", "", {}, "", state_hash(at::detail::getDefaultCPUGenerator()), {}});
    for (const auto& [key, generator] : program_.generators())
      out.push_back({str("random generator '{}'", key), "", {}, "", state_hash(generator), {}});
    return out;
  }

 private:
  static std::string group_of(Owner owner, const std::string& key) {
    const bool state = owner == Owner::kOptimizerState || owner == Owner::kBuffer;
    return str("{}{}{}", name_of(owner), state ? " " : "", state ? key.substr(key.rfind('.') + 1) : "");
  }

  const Plan& plan_;
  const Program& program_;
  size_t count_;
  bool by_bits_;
};

std::string difference_in_bits(const std::vector<Named>& replayed, const std::vector<Named>& eager) {
  for (size_t i = 0; i < eager.size(); ++i)
    if (eager[i].hash != replayed[i].hash) return eager[i].what;
  return {};
}

// How far apart two runs may be by rounding alone. A wrong kernel shows as more.
struct Tolerance {
  double of_itself;  // of the tensor's own root mean square
  double of_group;   // of the largest of its group: the gradient of a bias that softmax cancels is nothing but rounding
  double nothing;    // part of the largest of its group below which a tensor is nothing but rounding
};
constexpr Tolerance kWide = {1e-3, 1e-4, 1e-4};
constexpr Tolerance kNarrow = {5e-2, 1e-2, 3e-2};  // bf16 or f16, whatever the results are kept in

// Adam and its kin divide a gradient by its own size: where that is nothing but rounding, so is the update. Told by the
// optimizer's state of the parameter, all[p]. `sizes`: root mean squares; `largest`: those of the groups.
bool is_moved_by_rounding(size_t p, const std::vector<Named>& all, const std::vector<double>& sizes,
                          const std::map<std::string, double>& largest, const Tolerance& tolerance) {
  if (all[p].owner != Owner::kParameter) return false;
  for (size_t s = 0; s < all.size(); ++s) {
    const bool is_its_state = all[s].owner == Owner::kOptimizerState && all[s].values.defined() &&
                              all[s].values.sizes() == all[p].values.sizes() &&
                              ("." + all[s].key).find("." + all[p].key + ".") != std::string::npos;
    if (is_its_state && sizes[s] < tolerance.nothing * largest.at(all[s].group)) return true;
  }
  return false;
}

// `narrow`: the step computes in bf16 or f16.
std::string difference_in_values(const std::vector<Named>& replayed, const std::vector<Named>& eager, bool narrow) {
  const Tolerance& tolerance = narrow ? kNarrow : kWide;
  std::vector<double> sizes, errors;
  std::map<std::string, double> largest;
  for (size_t i = 0; i < eager.size(); ++i) {
    const at::Tensor& now = replayed[i].values;
    const at::Tensor& then = eager[i].values;
    if (now.defined() != then.defined()) return eager[i].what;
    const bool alike = !then.defined() || (now.sizes() == then.sizes() && now.scalar_type() == then.scalar_type());
    if (!alike) return eager[i].what;
    ValueDistance distance;
    if (then.defined() && then.is_floating_point())
      distance = value_distance(now, then);
    else if (then.defined() && !now.equal(then))
      return eager[i].what;
    if (!distance.finite_alike) return str("what is finite of {}", eager[i].what);
    sizes.push_back(distance.rms);
    errors.push_back(distance.apart);
    largest[eager[i].group] = std::max(largest[eager[i].group], distance.rms);
  }
  for (size_t i = 0; i < eager.size(); ++i) {
    const double group = largest.at(eager[i].group);
    if (errors[i] <= tolerance.of_itself * sizes[i] + tolerance.of_group * group) continue;
    if (errors[i] <= group && is_moved_by_rounding(i, eager, sizes, largest, tolerance)) continue;
    return str("{} by {:.1e} of {:.1e}", eager[i].what, errors[i], sizes[i]);
  }
  return {};
}

std::string numbers_difference(const std::vector<Arg>& replayed, const std::vector<Arg>& eager) {
  if (replayed.size() != eager.size()) return "the count of returned numbers";
  for (size_t i = 0; i < eager.size(); ++i)
    if (!same_number(replayed[i], eager[i]) && replayed[i] != eager[i]) return str("returned number {}", i);
  return {};
}

// What a run of the plain Graph leaves, as `left_by` lists it, beside what the replay left. A run that cannot be had is
// no proof.
template <class LeftBy>
std::string difference_from_plain(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                                  const std::vector<Named>& replayed, const LeftBy& left_by) {
  try {
    const Plan::Outcome plain = plan.run_plain(program, tensors);
    if (!plain.result) return "the plain graph, which decides otherwise";
    return difference_in_values(replayed, left_by(*plain.result), plan.graph()->narrow);
  } catch (const std::exception& error) {
    return str("an error of the plain graph: {}", first_line(error.what()));
  }
}

}  // namespace

Verification verify_replay(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step) {
  Verification verification;
  const Remains remains(plan, program, tensors.size());
  std::vector<Named> replayed;
  std::vector<Arg> numbers;
  {
    Undo undo(program, plan.changed(tensors), plan.generators(program));
    const SavedGradients gradients(program.keys(), tensors);
    verification.snapshot_bytes = undo.bytes();
    try {
      verification.outcome = plan.run(program, tensors);
    } catch (const std::exception& error) {
      // A kernel may want what a replay does not have. Where eager throws too, it says so itself.
      verification.outcome.result.emplace();
      verification.difference = str("an error: {}", first_line(error.what()));
    } catch (...) {
      gradients.restore();
      undo.restore();
      throw;
    }
    if (!verification.outcome.result.has_value()) return verification;
    if (!verification.difference.empty()) {
      gradients.restore();
      undo.restore();
      tensors.clear();
      verification.output = step();
      return verification;
    }
    StepResult& result = *verification.outcome.result;
    const auto left_by = [&](const StepResult& run) {
      size_t next = 0;
      return remains.of({run.outputs, {}}, tensors, [&](const Rebinding&) { return run.rebindings[next++].tensor; });
    };
    replayed = left_by(result);
    for (Named& one : replayed) {
      if (!one.values.defined()) continue;
      one.values = one.values.clone();
      verification.snapshot_bytes += one.values.nbytes();
    }
    numbers = std::move(result.numbers);
    result.outputs.clear();
    result.rebindings.clear();
    gradients.restore();
    undo.restore();
    if (plan.graph() != nullptr && !plan.ran_exact() && draws(plan.schedule())) {
      verification.with_plain = true;
      verification.difference = difference_from_plain(plan, program, tensors, replayed, left_by);
      gradients.restore();
      undo.restore();
    }
  }

  std::vector<at::Tensor> kept = tensors;
  for (size_t k = 0; k < program.keys().size(); ++k)
    if (program.keys()[k].owner == Owner::kGradient) kept[k].reset();
  tensors.clear();  // no references to gradients while eager runs
  verification.output = step();
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> now;
  program.append_tensors(now);
  for (size_t k = 0; k < now.size(); ++k)
    if (program.keys()[k].owner != Owner::kCaptured) kept[k] = now[k];
  const std::vector<Named> eager = remains.of(verification.output, kept, [&](const Rebinding& rebinding) {
    for (size_t k = 0; k < now.size(); ++k)
      if (program.keys()[k].owner == rebinding.owner && program.keys()[k].key == rebinding.key) return now[k];
    return at::Tensor();
  });
  INTERNAL_CHECK_EQ(eager.size(), replayed.size(), "eager and replay leave different sets of tensors");
  if (plan.graph() == nullptr) {
    verification.difference = difference_in_bits(replayed, eager);
    if (verification.difference.empty())
      verification.difference = numbers_difference(numbers, verification.output.numbers);
  } else if (!verification.with_plain) {
    verification.difference = difference_in_values(replayed, eager, plan.graph()->narrow);
  }
  tensors = std::move(kept);
  return verification;
}

namespace {

constexpr double kSlack = 1.02;                     // that a plain Graph taken apart may need above the plan
constexpr uint64_t kByChance = uint64_t{16} << 20;  // that a process takes more or less from run to run

// What a dry run would leave, as a run that happened lists it.
std::vector<Named> left_by_dry(const Remains& remains, const Plan::DryOutcome& run) {
  size_t next = 0;
  return remains.of({run.result->outputs, {}}, run.left,
                    [&](const Rebinding&) { return run.result->rebindings[next++].tensor; });
}

// Eager runs and is undone.
std::string difference_from_eager(const Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                                  const std::function<StepOutput()>& step, const Remains& remains,
                                  Plan::DryOutcome& dry) {
  const std::vector<OwnedKey> keys = program.keys();
  const auto is_gradient = [&](size_t k) { return k < keys.size() && keys[k].owner == Owner::kGradient; };
  for (size_t k = 0; k < tensors.size(); ++k)
    if (!dry.left[k].defined() && !is_gradient(k)) dry.left[k] = Sketch(tensors[k]).values();
  Undo undo(program, plan.changed(tensors), plan.generators(program));
  const SavedGradients gradients(keys, tensors);
  const auto put_back = [&] {
    gradients.restore();
    undo.restore();
    program.refresh();
  };
  std::string difference;
  try {
    StepOutput output = step();
    for (at::Tensor& one : output.tensors) one = Sketch(one).values();
    std::vector<at::Tensor> now;
    program.append_tensors(now);
    now.insert(now.end(), tensors.begin() + static_cast<ptrdiff_t>(keys.size()), tensors.end());
    for (at::Tensor& one : now) one = Sketch(one).values();
    const std::vector<Named> eager = remains.of(output, now, [&](const Rebinding& rebinding) {
      const auto found = std::ranges::find(keys, OwnedKey{rebinding.owner, rebinding.key});
      return found == keys.end() ? at::Tensor() : now[static_cast<size_t>(found - keys.begin())];
    });
    difference = difference_in_values(left_by_dry(remains, dry), eager, plan.graph()->narrow);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
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

DryVerification verify_dry(Plan& plan, Program& program, const std::vector<at::Tensor>& tensors,
                           const std::function<StepOutput()>& step, const MemoryBudget& budget) {
  DryVerification v;
  const Remains remains(plan, program, tensors.size());
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  const uint64_t planned = plan.schedule().peak_bytes();
  const uint64_t program_bytes = plan.schedule().input_bytes();
  // Made before the arena has its pages, for planning takes memory, too.
  v.plain_bytes = plan.make_plain(std::max(planned, kByChance));
  release_free_memory();
  const bool fits_plan =
      static_cast<double>(v.plain_bytes) <= kSlack * static_cast<double>(std::max(planned, kByChance));
  v.with_plain = fits_plan || v.plain_bytes + program_bytes <= (has_budget ? budget.bytes : usable_bytes());
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

  Plan::DryOutcome fused;
  try {
    fused = plan.run_dry(program, tensors);
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
                                                          plan.graph()->narrow);
  }

  uint64_t copies = 0;
  for (const at::Tensor& tensor : plan.changed(tensors))
    if (tensor.defined()) copies += tensor.nbytes();
  v.eager_bytes = plan.eager_peak_bytes + copies;
  v.with_eager = v.difference.empty() && !draws(plan.schedule()) &&
                 (v.eager_bytes <= planned || (has_budget && v.eager_bytes + program_bytes <= budget.bytes));
  if (!v.with_eager) return v;
  v.with = "eager";
  v.difference = difference_from_eager(plan, program, tensors, step, remains, fused);
  return v;
}

}  // namespace stepc
