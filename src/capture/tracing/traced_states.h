// The random generators of a traced step: which states its host code saves and restores, although nothing is drawn
// while it runs. After a call that would have drawn, a generator has a mark instead of a state. No other draw and no
// seed makes the same mark, so it identifies the state when the host restores it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "aten/generator_snapshot.h"
#include "ir/trace.h"

namespace stepc {

class TracedStates {
 public:
  // `trace` must outlive this.
  explicit TracedStates(const Trace& trace);

  // Called before each run. `generators`: one for each of the trace's; undefined for the default one and for those that
  // the step makes.
  void bind(std::vector<at::Generator> generators);
  // Whether a call that takes `given` takes the trace's generator. Learns a generator that the step makes.
  bool is_generator(const at::Generator& given, GeneratorId expected);
  const at::Generator& generator(GeneratorId id) const;

  // Whether `call` draws from the state of the recording, or draws nothing. For a call that the host reads, where the
  // plan runs up to it and leaves its own states: whether all states are as recorded. calls.size(): the same at the end
  // of the step.
  bool are_as_recorded(size_t call);
  // The same for a step that is computed as it comes, for states that the host sets: a seed.
  [[nodiscard]] bool is_seeded_as_recorded(size_t call) const;
  // `call` was left out.
  void skipped(size_t call);
  // Whether all states are as recorded where the step pauses, before `call`.
  bool are_as_recorded_at_pause(size_t call);
  // The program returns from the pause before `call`, in which it may have drawn.
  void resume(size_t call);
  // A plan has run up to here: generators have its states, and no marks.
  void ran();
  // Another plan has run: restores what the host has set.
  void ran_instead();
  // Whether `from`, whose trace begins with the same calls, drew in them as this trace does; if so, takes over its run.
  bool take_over(const TracedStates& from, size_t calls);

  // Notes what the host has set before call `before`, while no other states have been written over it.
  void look(size_t before);

  // ---- leaving the trace: left-out calls are computed

  // Whether the host has set any state. If so, a recording of what is computed would see the state later than the host
  // set it.
  [[nodiscard]] bool were_set() const { return !loads_.empty(); }
  void before_computing(size_t call);
  void after_computing(size_t call);
  // Afterwards: replaces each mark that the host may have restored by the state for which it stands.
  void replace_marks();

 private:
  struct Seen {
    GeneratorState state;
    GeneratorSnapshot snapshot;  // may be a mark
    std::optional<GeneratorSnapshot> computed;
  };
  struct Watched {
    at::Generator generator;
    std::deque<Seen> seen;
    size_t current = 0;  // index into seen
  };
  struct Load {
    size_t before = 0;
    size_t watched = 0;
    size_t seen = 0;
  };

  bool is_recorded(size_t watched, const GeneratorState& expected, size_t call);
  bool are_all_recorded(const std::vector<GeneratorState>& expected, size_t call);
  // The call that leaves the state `state`: the first of the calls that draw the same numbers.
  GeneratorState first_alike(GeneratorState state) const;
  bool draw_alike(size_t call, size_t other) const;

  // Notes what the host has set since the last draw.
  void look(size_t watched, size_t before);
  void see(size_t watched, GeneratorState::Kind kind, CallId call, const GeneratorSnapshot& snapshot);

  const Trace& trace_;
  std::vector<GeneratorId> draws_;                          // by call; invalid: the call draws nothing
  std::vector<GeneratorState> expected_;                    // by call: the state from which it draws
  std::map<size_t, std::vector<GeneratorState>> at_reads_;  // by call that the host reads, then by generator
  std::vector<GeneratorState> at_end_, at_pause_;           // by generator
  std::vector<size_t> alike_;                               // by call: the first call that leaves the same state
  std::vector<Watched> watched_;
  std::vector<Load> loads_;
};

}  // namespace stepc
