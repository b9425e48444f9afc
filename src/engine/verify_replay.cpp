#include "engine/verify_replay.h"

#include <span>

#include <c10/core/GradMode.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/tensor_hash.h"
#include "ir/agree.h"

namespace stepc {

namespace {

uint64_t state_hash(const at::Generator& generator) {
  const std::string state = to_bytes(read_generator(generator));
  return hash_bytes(std::as_bytes(std::span(state)));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

struct Named {
  std::string what;
  uint64_t hash = 0;
};

// Everything that a step leaves behind, in one order for both runs.
class Remains {
 public:
  Remains(const Plan& plan, const Program& program, size_t tensors) : plan_(plan), program_(program), count_(tensors) {}

  std::vector<Named> of(const StepOutput& output, const std::vector<at::Tensor>& tensors,
                        const std::function<at::Tensor(const Rebinding&)>& rebound) const {
    std::vector<Named> out;
    for (size_t o = 0; o < output.tensors.size(); ++o)
      out.push_back({str("returned value {}", o), hash_of(output.tensors[o])});
    const std::vector<OwnedKey>& keys = program_.keys();
    for (size_t k = 0; k < count_; ++k) {
      const bool batch = k >= keys.size();
      if (!batch && keys[k].owner == Owner::kGradient) continue;
      out.push_back(
          {batch ? str("batch tensor {}", k - keys.size()) : str("{} '{}'", name_of(keys[k].owner), keys[k].key),
           hash_of(tensors[k])});
    }
    for (const Rebinding& rebinding : plan_.trace().rebindings)
      out.push_back({str("{} '{}'", name_of(rebinding.owner), rebinding.key), hash_of(rebound(rebinding))});
    out.push_back({"random generator", state_hash(at::detail::getDefaultCPUGenerator())});
    for (const auto& [key, generator] : program_.generators())
      out.push_back({str("random generator '{}'", key), state_hash(generator)});
    return out;
  }

 private:
  const Plan& plan_;
  const Program& program_;
  size_t count_;
};

std::string numbers_difference(const std::vector<Arg>& replayed, const std::vector<Arg>& eager) {
  if (replayed.size() != eager.size()) return "the count of returned numbers";
  for (size_t i = 0; i < eager.size(); ++i)
    if (!same_number(replayed[i], eager[i]) && replayed[i] != eager[i]) return str("returned number {}", i);
  return {};
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
    size_t next = 0;
    replayed =
        remains.of({result.outputs, {}}, tensors, [&](const Rebinding&) { return result.rebindings[next++].tensor; });
    numbers = std::move(result.numbers);
    result.outputs.clear();
    result.rebindings.clear();
    gradients.restore();
    undo.restore();
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
  for (size_t i = 0; i < eager.size() && verification.difference.empty(); ++i)
    if (eager[i].hash != replayed[i].hash) verification.difference = eager[i].what;
  if (verification.difference.empty())
    verification.difference = numbers_difference(numbers, verification.output.numbers);
  tensors = std::move(kept);
  return verification;
}

}  // namespace stepc
