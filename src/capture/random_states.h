// The random generators of one recording: their states, compared before and after every call. A state that host code
// restores (checkpointing, fork_rng) is known from before; an unknown one is a constant (a seed set inside the step).
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "aten/generator_snapshot.h"
#include "ir/trace.h"

namespace stepc {

class RandomStates {
 public:
  // Watches the process's default generator and the program's own.
  explicit RandomStates(const std::vector<std::pair<std::string, at::Generator>>& owned);

  // The generator argument of a call. A generator that is not watched yet belongs to the step: its state is a constant.
  GeneratorArg argument(const at::Generator& generator);

  void before_call(CallId call);
  // Whether the program has restored an earlier state since the last call.
  bool are_put_back() const;
  // The program returns from a pause, in which it may have drawn.
  void resume();
  void after_call(CallId call);

  // Adds generators, states and loads to the trace; `end` is one past the last call. Leaves out states that are never
  // restored.
  void finish(CallId end, Trace& trace);

  // Generators that neither the step made nor the program owns. Their states are constants in the trace.
  std::vector<at::Generator> unowned() const;

 private:
  struct Seen {
    GeneratorState state;
    GeneratorSnapshot snapshot;
  };
  struct Watched {
    at::Generator generator;
    std::string key;
    bool owned = false;
    std::deque<Seen> seen;
    size_t current = 0;  // index into seen
  };
  struct Load {
    CallId before;
    size_t watched = 0;
    size_t seen = 0;
  };

  void watch(std::string key, const at::Generator& generator, bool owned);
  // Adds the generator's present state and makes it the current one.
  void see(size_t watched, GeneratorState::Kind kind, CallId call);

  std::vector<Watched> watched_;
  std::vector<Load> loads_;
};

}  // namespace stepc
