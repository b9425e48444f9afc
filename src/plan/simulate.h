// simulate(): when every instruction of a Schedule will run on a Target, and what memory holds meanwhile, without
// running it. A pure function of its inputs; needs neither LibTorch nor a code generator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/target.h"
#include "plan/price.h"
#include "schedule/schedule.h"

namespace stepc {

struct TimelineEntry {
  WorkClass work = WorkClass::kHost;
  uint32_t stream = 0;
  double begin_seconds = 0, end_seconds = 0;  // from the step's begin
  uint64_t live_bytes = 0;                    // planned memory in use while it runs: arena and own, scratch included
  [[nodiscard]] double seconds() const { return end_seconds - begin_seconds; }
  bool operator==(const TimelineEntry&) const = default;
};

struct Timeline {
  std::vector<TimelineEntry> entries;  // one an instruction
  double seconds = 0;                  // of the step, the program's own host code aside
  double bind_seconds = 0;             // of these, before the first instruction
  double exchange_seconds = 0;         // that collectives take, on any stream, with what they wait for shared links
  double exposed_seconds = 0;          // of these, that stream 0 waits for them
  uint64_t peak_bytes = 0;             // the largest live_bytes
  bool operator==(const Timeline&) const = default;
};

// Streams run side by side as far as marks let them; a collective with a mark begins once all before it on stream 0 has
// ended. Exchanges that go on at the same time share the link that both load (stream_times.h). The step in a row of
// equal steps: what it finds in caches is what the one before left there.
//
// A tensor's bytes come from as far as traffic has gone by since they were last touched (their reuse distance; Mattson,
// Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies, 1970), at the Target's rate for a stream of
// that size. UserError where one is a GPU's and the other a CPU's.
Timeline simulate(const Schedule& schedule, const Target& target);

// Of its collectives, by kind and the mesh axes that they go along, with their time.
std::vector<Communication> communication_of(const Schedule& schedule, const Timeline& timeline);

// Sums by class of work: count, seconds, share.
std::string to_text(const Timeline& timeline);
// Trace-event JSON for ui.perfetto.dev: a track a stream, with what each collective sends, and live bytes beside.
std::string to_trace_events(const Schedule& schedule, const Timeline& timeline);

}  // namespace stepc
