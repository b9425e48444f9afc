// RandomStreams: numbers the random draws of a Trace while it becomes a Graph. Every draw gets a stream of its own; a
// draw after an earlier generator state was restored (recomputed dropout) gets the earlier draw's stream again. Each
// generator has one seed.
#pragma once

#include <vector>

#include "ir/trace.h"

namespace stepc {

class RandomStreams {
 public:
  explicit RandomStreams(const Trace& trace) : trace_(trace), next_(std::max<size_t>(trace.generators.size(), 1), 0) {}

  // Called before and after each call, in order.
  void before(CallId call) {
    for (const GeneratorLoad& load : trace_.loads)
      if (load.before == call) next_[trace_.states[load.state.index()].generator.index()] = position_of(load.state);
  }
  void after(CallId call) {
    for (size_t s = 0; s < trace_.states.size(); ++s) {
      const GeneratorState& state = trace_.states[s];
      if (state.kind != GeneratorState::Kind::kAfterCall || state.call != call) continue;
      saved_.resize(trace_.states.size(), 0);
      saved_[s] = next_[state.generator.index()];
    }
  }
  // The step continues after a pause.
  void resume() { resumed_ = next_; }
  // The stream of the next draw of the generator among `args`, the default one if none is.
  int64_t next(const std::vector<Arg>& args) { return next_[generator_of(args).index()]++; }
  static GeneratorId generator_of(const std::vector<Arg>& args) {
    GeneratorId generator(0);
    for (const Arg& arg : args)
      if (const auto* given = std::get_if<GeneratorArg>(&arg)) generator = given->generator;
    return generator;
  }

 private:
  static constexpr int64_t kDrawsAfterSeed = 1 << 12;

  int64_t position_of(StateId id) const {
    const GeneratorState& state = trace_.states[id.index()];
    switch (state.kind) {
      case GeneratorState::Kind::kInitial:
        return 0;
      case GeneratorState::Kind::kResumed:
        return resumed_.empty() ? 0 : resumed_[state.generator.index()];
      case GeneratorState::Kind::kAfterCall:
        return id.index() < saved_.size() ? saved_[id.index()] : 0;
      case GeneratorState::Kind::kConstant:  // a seed set in the step: draws of its own, the same for the same state
        return static_cast<int64_t>(id.index() + 1) * kDrawsAfterSeed;
    }
    return 0;
  }

  const Trace& trace_;
  std::vector<int64_t> next_;     // by generator
  std::vector<int64_t> saved_;    // by state
  std::vector<int64_t> resumed_;  // by generator: the positions at the pause
};

}  // namespace stepc
