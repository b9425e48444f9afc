#include "engine/record/fixed_draws.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/observer.h"

namespace stepc {

namespace {

enum class Distribution : uint8_t { kBernoulli, kDropout, kUniform, kNormal, kInteger, kExponential, kPermutation };
struct DrawName {
  std::string_view name;
  Distribution distribution;
};
constexpr std::array kDraws = std::to_array<DrawName>({
    {"aten::bernoulli", Distribution::kBernoulli},
    {"aten::bernoulli_", Distribution::kBernoulli},
    {"aten::native_dropout", Distribution::kDropout},
    {"aten::uniform_", Distribution::kUniform},
    {"aten::rand", Distribution::kUniform},
    {"aten::rand_like", Distribution::kUniform},
    {"aten::normal", Distribution::kNormal},
    {"aten::normal_", Distribution::kNormal},
    {"aten::randn", Distribution::kNormal},
    {"aten::randn_like", Distribution::kNormal},
    {"aten::random_", Distribution::kInteger},
    {"aten::randint", Distribution::kInteger},
    {"aten::randint_like", Distribution::kInteger},
    {"aten::exponential_", Distribution::kExponential},
    {"aten::randperm", Distribution::kPermutation},
});

// The arguments of a call by name, as they were before it. An argument that the call does not have is undefined or has
// the given default.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), values_(torch::jit::last(stack, op.schema().arguments().size()).vec()) {}

  [[nodiscard]] at::Tensor tensor(std::string_view name) const {
    const c10::IValue* const value = find(name);
    return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
  }
  [[nodiscard]] double number(std::string_view name, double otherwise) const {
    const c10::IValue* const value = find(name);
    return value != nullptr && value->isScalar() ? value->toScalar().toDouble() : otherwise;
  }

 private:
  [[nodiscard]] const c10::IValue* find(std::string_view name) const {
    for (size_t i = 0; i < values_.size(); ++i)
      if (schema_.arguments()[i].name() == name) return &values_[i];
    return nullptr;
  }
  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> values_;
};

// Fills `out` with a parameter of the distribution, which is a tensor or a number.
void put(const at::Tensor& out, const Arguments& arguments, std::string_view name, double otherwise) {
  if (const at::Tensor values = arguments.tensor(name); values.defined())
    out.copy_(values.expand_as(out));
  else
    out.fill_(arguments.number(name, otherwise));
}

void fix(Distribution distribution, const Arguments& arguments, const at::Tensor& out, const at::Tensor& mask) {
  switch (distribution) {
    case Distribution::kBernoulli:
      // Without a probability argument the operand holds the probabilities.
      if (arguments.tensor("p").defined() || arguments.number("p", -1) >= 0) return put(out, arguments, "p", 0);
      return put(out, arguments, "self", 0);
    case Distribution::kDropout: {
      const double p = arguments.number("p", 0);
      out.copy_(arguments.tensor("input"));
      if (p < 1) out.div_(1 - p);
      if (mask.defined()) mask.fill_(true);
      return;
    }
    case Distribution::kUniform:
      out.fill_((arguments.number("from", 0) + arguments.number("to", 1)) / 2);
      return;
    case Distribution::kNormal: {
      put(out, arguments, "mean", 0);
      if (const at::Tensor deviation = arguments.tensor("std"); deviation.defined())
        out.add_(deviation, 0.5);
      else
        out.add_(arguments.number("std", 1) / 2);
      return;
    }
    case Distribution::kInteger:
      out.fill_(std::max(arguments.number("from", 0), arguments.number("low", 0)));
      return;
    case Distribution::kExponential:
      out.fill_(1 / arguments.number("lambd", 1));
      return;
    case Distribution::kPermutation:
      out.copy_(at::arange(out.numel(), out.options()));
      return;
  }
}

class FixedDraws final : public CallObserver {
 public:
  explicit FixedDraws(CallObserver* recording) : recording_(recording) {}

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    const auto* const draw = std::ranges::find(kDraws, op.schema().name(), &DrawName::name);
    std::optional<Arguments> arguments;
    if (draw != kDraws.end()) arguments.emplace(op, *stack);
    recording_->call(op, below, stack);
    if (!arguments) return;
    const auto results = torch::jit::last(*stack, op.schema().returns().size());
    if (results.empty() || !results[0].isTensor()) return;
    const at::AutoDispatchBelowADInplaceOrView values_alone;
    fix(draw->distribution, *arguments, results[0].toTensor(),
        results.size() > 1 && results[1].isTensor() ? results[1].toTensor() : at::Tensor());
  }
  void begin_event(const std::string& key) override { recording_->begin_event(key); }
  void end_event() override { recording_->end_event(); }
  RecordingState* recording() override { return recording_->recording(); }

 private:
  CallObserver* recording_;  // outlives it: the scope that it stands in is the step's
};

}  // namespace

StepOutput with_fixed_draws(const std::function<StepOutput()>& step) {
  const ObserverScope scope(std::make_shared<FixedDraws>(current_observer()));
  return step();
}

}  // namespace stepc
