#include "engine/verify_replay.h"

#include <algorithm>
#include <optional>
#include <span>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/run_difference.h"
#include "ir/agree.h"

namespace stepc {

namespace {

uint64_t state_hash(const at::Generator& generator) {
  const std::string state = to_bytes(read_generator(generator));
  return hash_bytes(std::as_bytes(std::span(state)));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

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
      out.push_back(named(std::move(what), std::move(group), tensor, by_bits_, owner, key));
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

}  // namespace stepc
