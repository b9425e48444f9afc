// measure_links(): how fast the ranks of a run reach each other, level by level: the ranks of one machine, and
// machines. Each level is measured by collectives from 1 KB to 64 MB, and told as the latency and the rate that fit
// them best.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "cost/rates.h"

namespace stepc {

// What one all_gather took: `sent_bytes` from each rank, `hops` messages one after the other.
struct LinkSample {
  double sent_bytes = 0, hops = 0, seconds = 0;
};
// Latency and rate of the line through the samples whose errors, as parts of what was measured, have the least squares.
// UserError for less than two sizes. `link`: its name and devices.
Link fit_link(Link link, const std::vector<LinkSample>& samples);
// The mean of the errors of the fit, as parts of what was measured.
double error_of(const Link& link, const std::vector<LinkSample>& samples);

struct MeasuredLink {
  Link link;
  std::vector<LinkSample> samples;
};
// All ranks call it, which are `on_a_machine` on each machine, one after the other; the result is the same on all of
// them. `progress` hears what is measured next. Links of machines are measured by all ranks at once, each with the one
// of its number on the others.
std::vector<MeasuredLink> measure_links(Ranks& ranks, int64_t on_a_machine,
                                        const std::function<void(const std::string&)>& progress = {});

// A row a size, for people.
std::string to_text(const MeasuredLink& measured);

}  // namespace stepc
