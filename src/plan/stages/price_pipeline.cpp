#include "plan/stages/price_pipeline.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/check.h"

namespace stepc {

namespace {

// Ranks that take their passes one after the other, each as soon as what it needs is there.
class PassClock {
 public:
  PassClock(const std::vector<StageCost>& stages, const StageOrder& order)
      : stages_(stages),
        order_(order),
        forward_(stages.size() * static_cast<size_t>(order.micro_batches)),
        backward_(forward_.size()),
        now_(order.passes.size()),
        busy_(order.passes.size()) {}

  PipelinePrice run() {
    std::vector<size_t> at(order_.passes.size());
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < at.size(); ++rank)
        while (at[rank] < order_.passes[rank].size() && can_take(rank, order_.passes[rank][at[rank]])) {
          ++at[rank];
          moves = true;
        }
    }
    for (size_t rank = 0; rank < at.size(); ++rank)
      USER_CHECK(at[rank] == order_.passes[rank].size(), "the order of the pipeline's passes never ends: rank {} waits",
                 rank);
    PipelinePrice price;
    price.seconds = *std::ranges::max_element(now_);
    const double computed = std::accumulate(busy_.begin(), busy_.end(), 0.0);
    price.bubble = price.seconds > 0 ? 1 - computed / (price.seconds * static_cast<double>(busy_.size())) : 0;
    price.busy = busy_;
    for (size_t rank = 0; rank < at.size(); ++rank) count_bytes(order_.passes[rank], price);
    return price;
  }

 private:
  std::optional<double>& at(std::vector<std::optional<double>>& times, int64_t stage, int64_t micro_batch) {
    return times[static_cast<size_t>(stage * order_.micro_batches + micro_batch)];
  }
  // When what a pass needs of the stage before it is there; nothing: nobody has begun that yet.
  std::optional<double> given(const StagePass& pass) {
    if (pass.kind == StagePass::Kind::kForward) {
      if (pass.stage == 0) return 0;
      const auto sent = at(forward_, pass.stage - 1, pass.micro_batch);
      return sent ? std::optional(*sent + seconds_between(pass.stage - 1)) : std::nullopt;
    }
    if (!at(forward_, pass.stage, pass.micro_batch)) return std::nullopt;
    if (pass.kind == StagePass::Kind::kWeights || pass.stage + 1 == order_.stages) return 0;
    const auto sent = at(backward_, pass.stage + 1, pass.micro_batch);
    return sent ? std::optional(*sent + seconds_between(pass.stage)) : std::nullopt;
  }
  // From a stage to the next one, or back.
  [[nodiscard]] double seconds_between(int64_t stage) const {
    const bool is_same_rank = order_.rank_of(stage) == order_.rank_of(stage + 1);
    return is_same_rank ? 0 : stages_[static_cast<size_t>(stage)].send_seconds;
  }
  bool can_take(size_t rank, const StagePass& pass) {
    const std::optional<double> there = given(pass);
    if (!there) return false;
    const StageCost& cost = stages_.at(static_cast<size_t>(pass.stage));
    using Kind = StagePass::Kind;
    const double seconds = pass.kind == Kind::kForward   ? cost.forward_seconds
                           : pass.kind == Kind::kInputs  ? cost.input_seconds
                           : pass.kind == Kind::kWeights ? cost.weight_seconds
                                                         : cost.input_seconds + cost.weight_seconds;
    now_[rank] = std::max(now_[rank], *there) + seconds;
    busy_[rank] += seconds;
    if (pass.kind == Kind::kForward) at(forward_, pass.stage, pass.micro_batch) = now_[rank];
    if (pass.kind == Kind::kBackward || pass.kind == Kind::kInputs)
      at(backward_, pass.stage, pass.micro_batch) = now_[rank];
    return true;
  }
  void count_bytes(const std::vector<StagePass>& passes, PipelinePrice& price) const {
    std::vector<bool> is_here(stages_.size());
    uint64_t state = 0, held = 0, most = 0;
    int64_t live = 0, most_live = 0;
    for (const StagePass& pass : passes) {
      const auto stage = static_cast<size_t>(pass.stage);
      if (!is_here[stage]) state += stages_[stage].state_bytes;
      is_here[stage] = true;
      if (pass.kind == StagePass::Kind::kForward) held += stages_[stage].held_bytes, ++live;
      most = std::max(most, held + stages_[stage].working_bytes);
      most_live = std::max(most_live, live);
      if (pass.kind == StagePass::Kind::kBackward || pass.kind == StagePass::Kind::kWeights)
        held -= stages_[stage].held_bytes, --live;
    }
    price.bytes.push_back(state + most);
    price.live_most.push_back(most_live);
  }

  const std::vector<StageCost>& stages_;
  const StageOrder& order_;
  std::vector<std::optional<double>> forward_, backward_;  // by stage and micro-batch, when its pass has ended
  std::vector<double> now_, busy_;                         // by rank
};

}  // namespace

PipelinePrice price_pipeline(const std::vector<StageCost>& stages, const StageOrder& order) {
  INTERNAL_CHECK_EQ(std::ssize(stages), order.stages, "stages of the order");
  return PassClock(stages, order).run();
}

}  // namespace stepc
