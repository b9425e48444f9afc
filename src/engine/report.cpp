// The report after a run: planned values beside measured ones.
#include <algorithm>

#include <fmt/ranges.h>

#include "base/text.h"
#include "cost/profile.h"
#include "engine/stats.h"

namespace stepc {

namespace {
std::string ratio(uint64_t a, uint64_t b) {
  return b == 0 ? "-" : str("{:.3f}", static_cast<double>(a) / static_cast<double>(b));
}

std::string mean_text(double seconds, uint64_t count) { return time_text(seconds / static_cast<double>(count)); }

std::string step_time_text(const Stats& s, const std::optional<Prediction>& prediction) {
  std::vector<std::string> parts;
  if (prediction) parts.push_back("predicted " + to_text(*prediction));
  if (s.device_replays != 0)
    parts.push_back(str("measured {} on the device, the mean of {} replays; the host's calls {}",
                        mean_text(s.device_seconds, s.device_replays), s.device_replays,
                        mean_text(s.execute_seconds, s.replays)));
  else if (prediction && s.replays != 0)
    parts.push_back(str("measured {}, the mean of {} replays", mean_text(s.execute_seconds, s.replays), s.replays));
  return parts.empty() ? std::string() : str("  step time   {}\n", fmt::join(parts, "; "));
}
}  // namespace

std::string report_text(const Stats& s, std::string_view mode, const std::optional<Prediction>& prediction) {
  if (s.plans == 0)
    return str("stepc report: no plan, mode {}; {} eager calls, {} recordings\n", mode, s.eager_calls, s.recordings);
  std::string out;
  out += str("stepc report: mode {}\n", mode);
  if (s.graph_nodes != 0)
    out += str("  step        {} ATen calls, a graph of {} nodes, {} instructions, {} of them generated kernels\n",
               s.nodes, s.graph_nodes, s.instructions, s.kernels);
  else
    out += str("  step        {} ATen calls, {} replayed as instructions, the others only make views\n", s.nodes,
               s.instructions);
  out += str("  calls       {} replayed, {} recorded, {} eager ({} of them to verify a replay)\n", s.replays,
             s.recordings, s.eager_calls, std::min(s.verifications, s.eager_calls));
  if (!s.verified_with.empty())
    out += str("              compared before the first of them {}\n", s.verified_with);
  else if (s.plain_verifications != 0)
    out += str("              {} replays compared with the plain graph, {} with eager\n", s.plain_verifications,
               s.eager_verifications);
  if (s.float64_verifications != 0)
    out += str("              {} of them decided by float64: {}\n", s.float64_verifications, s.eager_errs);
  if (s.recorded_replays != 0)
    out += str("              {} of these replays ran the recorded calls, because the graph did not fit\n",
               s.recorded_replays);
  out += str("  plans       {} compiled, {} of them after the warm-up\n", s.plans, s.late_plans);
  out += str("  host        {} guards, {} missed\n", s.guards, s.guard_misses);
  out += str("  time        capture {:.3f} s, garbage collection {:.3f} s, planning {:.3f} s, verification {:.3f} s",
             s.capture_seconds, s.settle_seconds, s.planning_seconds, s.verify_seconds);
  if (s.replays != 0 && s.shadow_seconds > 0)
    out += str(", optimizers' host code {:.3f} ms a step", 1e3 * s.shadow_seconds / static_cast<double>(s.replays));
  out += "\n";
  out += step_time_text(s, prediction);
  if (!s.auto_budget.empty()) out += str("  budget auto {}\n", s.auto_budget);
  out += "  memory                     planned     measured        eager\n";
  out += str("    step peak           {:>12} {:>12} {:>12}\n", human_bytes(s.planned_peak_bytes),
             human_bytes(s.measured_peak_bytes), human_bytes(s.eager_peak_bytes));
  out += str("    beside eager        {:>12} {:>12}\n", ratio(s.planned_peak_bytes, s.eager_peak_bytes),
             ratio(s.measured_peak_bytes, s.eager_peak_bytes));
  out += str("    arena               {:>12}   {} of the largest sum of live bytes ({})\n", human_bytes(s.arena_bytes),
             ratio(s.arena_bytes, s.live_lower_bound_bytes), s.layout_algorithm);
  out += str("    model and optimizer {:>12}\n", human_bytes(s.state_bytes));
  if (s.verification_bytes != 0)
    out += str("    verification        {:>12}   once, in addition\n", human_bytes(s.verification_bytes));
  out += str("  allocations {} a step from the arena, {} outside the plan in all replays\n", s.served_allocations,
             s.unplanned_allocations);
  if (s.device_graphs != 0) out += str("  graphs      {} launched a step on its device\n", s.device_graphs);
  return out;
}

}  // namespace stepc
