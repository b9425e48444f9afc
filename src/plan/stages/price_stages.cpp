#include "plan/stages/price_stages.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "plan/stages/stage_program.h"

namespace stepc {

namespace {

// A pipeline of functions without graphs, with as many bytes between them as the stages say.
class Chain {
 public:
  explicit Chain(const std::vector<StageTake>& stages) {
    cut_.stages = std::ssize(stages);
    const size_t last = stages.size() - 1;
    for (size_t s = 0; s < last; ++s) add_function(s, Phase::kForward);
    for (size_t s = stages.size(); s-- > 0;) add_function(s, Phase::kBackward);
    for (size_t s = 0; s < last; ++s) {
      // The last stage has no forward pass of its own.
      const uint32_t next = s + 1 == last ? backward(last) : forward(s + 1);
      add_value(stages[s].onward_bytes, forward(s), next);
      add_value(stages[s].kept_bytes, forward(s), backward(s));
      add_value(stages[s + 1].back_bytes, backward(s + 1), backward(s));
    }
    for (const StageFunction& function : cut_.functions) {
      const StageTake& stage = stages[static_cast<size_t>(function.stage)];
      seconds_.push_back(function.phase == Phase::kForward ? stage.forward_seconds : stage.backward_seconds);
    }
  }

  [[nodiscard]] const StageCut& cut() const { return cut_; }
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }
  [[nodiscard]] std::vector<uint64_t> bytes() const {
    std::vector<uint64_t> out;
    for (const StageValue& value : cut_.values) out.push_back(static_cast<uint64_t>(bytes_of(value.type)));
    return out;
  }

 private:
  [[nodiscard]] static uint32_t forward(size_t stage) { return static_cast<uint32_t>(stage); }
  [[nodiscard]] uint32_t backward(size_t stage) const {
    return static_cast<uint32_t>(2 * static_cast<size_t>(cut_.stages) - 2 - stage);
  }

  void add_function(size_t stage, Phase phase) {
    const std::string_view name = phase == Phase::kForward ? "forward" : "backward";
    StageFunction& one = cut_.functions.emplace_back();
    one.name = str("{} {}", name, stage);
    one.stage = static_cast<int64_t>(stage);
    one.phase = phase;
  }

  void add_value(uint64_t bytes, uint32_t maker, uint32_t user) {
    const auto value = static_cast<uint32_t>(cut_.values.size());
    StageValue& one = cut_.values.emplace_back();
    one.type = {DType::kU8, Shape(1, static_cast<int64_t>(bytes))};
    one.maker = maker;
    one.users.push_back(user);
    cut_.functions[maker].gives.push_back(value);
    cut_.functions[user].takes.push_back(value);
  }

  StageCut cut_;
  std::vector<double> seconds_;
};

}  // namespace

PricedStages price_stages(const std::vector<StageTake>& stages, const StageOrder& order,
                          const std::function<double(double bytes)>& message_seconds) {
  INTERNAL_CHECK_EQ(std::ssize(stages), order.stages, "stages of the order");
  const Chain chain(stages);
  const StageProgram program = make_program(chain.cut(), order);
  const std::vector<uint64_t> bytes = chain.bytes();
  PricedStages out;
  out.timeline = simulate(program, chain.seconds(), [&](const StageCall& send) {
    double sent = 0;
    for (const SlotValue& one : send.reads) sent += static_cast<double>(bytes[one.value]);
    return message_seconds(sent);
  });
  for (int64_t rank = 0; rank < order.ranks(); ++rank)
    out.between_bytes.push_back(peak_slot_bytes(program, rank, bytes));
  return out;
}

}  // namespace stepc
