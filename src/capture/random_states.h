// The random generators of one recording: their states, compared at every call's borders. A state that host code put
// back (checkpointing, fork_rng) is known from before; an unknown one is a constant (a seed set inside the step).
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

  // The generator that a call takes. One that is not watched yet is the step's own: its state is a constant.
  GeneratorArg argument(const at::Generator& generator);

  void before_call(CallId call);
  // Whether the program has put an earlier state back since the last call.
  bool are_put_back() const;
  // The program comes back from a pause, in which it may have drawn.
  void resume();
  void after_call(CallId call);

  // Adds generators, states and loads to the trace; `end` is one past the last call. States that are never put back
  // are left out.
  void finish(CallId end, Trace& trace);

  // Generators that the step did not make and that the program does not own. Their states are constants in the trace.
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
