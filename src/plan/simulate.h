// simulate(): the time of every instruction of a Schedule on a Target, and the live memory at that time, without
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
  double begin_seconds = 0, end_seconds = 0;  // from the beginning of the step
  uint64_t live_bytes = 0;                    // planned memory in use while it runs: arena and own, scratch included
  [[nodiscard]] double seconds() const { return end_seconds - begin_seconds; }
  bool operator==(const TimelineEntry&) const = default;
};

struct Timeline {
  std::vector<TimelineEntry> entries;  // one for each instruction
  double seconds = 0;                  // of the step, without the program's own host code
  double bind_seconds = 0;             // of these, before the first instruction
  double exchange_seconds = 0;         // of collectives, on any stream, with their waiting for shared links
  double exposed_seconds = 0;          // of these, while stream 0 waits for them
  uint64_t peak_bytes = 0;             // the largest live_bytes
  bool operator==(const Timeline&) const = default;
};

// Streams run at the same time as far as marks allow. A collective with a mark begins when everything before it on
// stream 0 has ended. Exchanges that run at the same time share the link that both load (stream_times.h). The step is
// one in a row of equal steps: it finds in caches what the one before has left there.
//
// The distance of a tensor's bytes is the traffic since they were last touched (their reuse distance; Mattson, Gecsei,
// Slutz, Traiger: Evaluation techniques for storage hierarchies, 1970); they come at the Target's rate for a stream of
// that size. Throws UserError if one argument is for a GPU and the other for a CPU.
Timeline simulate(const Schedule& schedule, const Target& target);

// The Schedule's collectives, by kind and by the mesh axes along which they communicate, with their time.
std::vector<Communication> communication_of(const Schedule& schedule, const Timeline& timeline);

// Sums by class of work: count, seconds, share.
std::string to_text(const Timeline& timeline);
// Trace-event JSON for ui.perfetto.dev: one track for each stream, with the bytes that each collective sends, and live
// bytes.
std::string to_trace_events(const Schedule& schedule, const Timeline& timeline);

}  // namespace stepc
