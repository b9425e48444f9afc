#include "calibrate/measure_links.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "cost/profile.h"
#include "ir/mesh.h"

namespace stepc {

namespace {

constexpr uint64_t kLeast = uint64_t{1} << 10, kMost = uint64_t{64} << 20;
// So often at least, and of what is soon there until so many seconds are spent.
constexpr int kLeastRepeats = 7, kMostRepeats = 500;
constexpr double kSecondsOfASize = 0.1;
constexpr double kLeastLatency = 1e-9;  // a rank's message is never there at once

// `bytes`: of what all ranks have gathered in the end. It takes as long as it takes the slowest rank. The fastest of
// the repeats: what others do is no part of a link.
LinkSample sample(Ranks& ranks, RankGroup& group, uint64_t bytes) {
  const int64_t members = group.ranks();
  const int64_t own = std::max<int64_t>(1, static_cast<int64_t>(bytes) / members);
  const at::Tensor operand = at::zeros({own}, at::kByte), result = at::zeros({members, own}, at::kByte);
  double fastest = INFINITY, spent = 0;  // the same on all ranks
  for (int i = 0; i < kLeastRepeats || (i < kMostRepeats && spent < kSecondsOfASize); ++i) {
    ranks.barrier();
    const auto begin = Clock::now();
    group.all_gather(operand, result);
    const double seconds = seconds_since(begin);
    const double longest = 1e-9 * static_cast<double>(ranks.largest(static_cast<int64_t>(seconds * 1e9)));
    fastest = std::min(fastest, longest);
    spent += longest;
  }
  return {static_cast<double>((members - 1) * own), static_cast<double>(members - 1), fastest};
}

}  // namespace

// seconds = hops * latency + bytes / rate, weighted by 1 / seconds^2: two normal equations.
Link fit_link(Link link, const std::vector<LinkSample>& samples) {
  double hh = 0, hb = 0, bb = 0, h = 0, b = 0;
  for (const LinkSample& one : samples) {
    const double hops = one.hops / one.seconds, bytes = one.sent_bytes / one.seconds;
    hh += hops * hops;
    hb += hops * bytes;
    bb += bytes * bytes;
    h += hops;
    b += bytes;
  }
  const double determinant = hh * bb - hb * hb;
  USER_CHECK(samples.size() >= 2 && determinant > 0, "a link is measured with at least two sizes");
  double latency = (h * bb - b * hb) / determinant;
  double seconds_a_byte = (b * hh - h * hb) / determinant;
  if (latency < kLeastLatency) {
    latency = kLeastLatency;
    seconds_a_byte = (b - latency * hb) / bb;
  }
  if (seconds_a_byte <= 0) {  // small messages alone: what they took is latency
    latency = h / hh;
    seconds_a_byte = kLeastLatency * kLeastLatency;
  }
  link.latency_seconds = latency;
  link.bytes_per_second = 1 / seconds_a_byte;
  return link;
}

double error_of(const Link& link, const std::vector<LinkSample>& samples) {
  double sum = 0;
  for (const LinkSample& one : samples) {
    const double fitted = one.hops * link.latency_seconds + one.sent_bytes / link.bytes_per_second;
    sum += std::abs(fitted / one.seconds - 1);
  }
  return sum / static_cast<double>(samples.size());
}

std::vector<MeasuredLink> measure_links(Ranks& ranks, int64_t on_a_machine,
                                        const std::function<void(const std::string&)>& progress) {
  INTERNAL_CHECK(on_a_machine >= 1 && ranks.ranks() % on_a_machine == 0, "{} ranks on machines of {}", ranks.ranks(),
                 on_a_machine);
  const Mesh mesh = make_mesh({{"dp_replicate", ranks.ranks() / on_a_machine}, {"dp_shard", on_a_machine}});
  std::vector<MeasuredLink> out;
  for (const auto& [axis, name, devices] :
       {std::tuple("dp_shard", "machine", on_a_machine), std::tuple("dp_replicate", "network", ranks.ranks())}) {
    const auto found = mesh.find(axis);
    if (!found) continue;
    RankGroup& group = ranks.along(mesh, {*found});
    MeasuredLink& measured = out.emplace_back();
    for (uint64_t bytes = kLeast; bytes <= kMost; bytes *= 4) {
      if (progress) progress(str("{} with {}", name, human_bytes(bytes)));
      measured.samples.push_back(sample(ranks, group, bytes));
    }
    measured.link = fit_link({name, devices}, measured.samples);
  }
  return out;
}

std::string to_text(const MeasuredLink& measured) {
  const Link& link = measured.link;
  std::string out =
      str("{}: {:.3g} GB/s, {:.1f} us a message; {:.0f} % from what was measured on average\n", link.name,
          link.bytes_per_second / 1e9, link.latency_seconds * 1e6, 100 * error_of(link, measured.samples));
  for (const LinkSample& one : measured.samples)
    out += str("  {:>10} from each rank {:>12}, fitted {:>12}\n", human_bytes(static_cast<uint64_t>(one.sent_bytes)),
               time_text(one.seconds),
               time_text(one.hops * link.latency_seconds + one.sent_bytes / link.bytes_per_second));
  return out;
}

}  // namespace stepc
