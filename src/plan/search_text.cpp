#include "plan/search_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cost/profile.h"

namespace stepc {

namespace {

constexpr double kTera = 1e12;

double tokens_of(const SearchSubject& subject) {
  return static_cast<double>(subject.rows) * static_cast<double>(subject.tokens);
}

// Of each device, while the step takes `seconds`.
double flops_a_second(double flops_per_token, const SearchSubject& subject, const Cluster& cluster, double seconds) {
  return flops_per_token * tokens_of(subject) / seconds / static_cast<double>(cluster.devices());
}

std::string added_text(const Outcome& one) {
  if (one.candidate.pp > 1) return str(", waits {:.0f} %", 100 * one.waiting_seconds / one.seconds);
  return one.recomputes ? ", recomputes" : "";
}

std::string row_of(size_t place, const Outcome& one, const SearchSubject& subject, const Cluster& cluster) {
  const double rate = flops_a_second(subject.flops_per_token, subject, cluster, one.seconds);
  const double full = flops_a_second(subject.full_attention_flops_per_token, subject, cluster, one.seconds);
  const double tokens = tokens_of(subject) / one.seconds;
  const double best = cluster.target.narrow_flops_per_second;
  return str("{:>3}  {:>10}  {:>9}  {:>8}  {:>7.3g}  {:>4.0f} %  {:>4.0f} %  {:>10}  {:>10}  {:>10}  {}{}\n", place,
             time_text(one.seconds), human_count(tokens),
             human_count(std::round(tokens / static_cast<double>(cluster.devices()))), rate / kTera, 100 * rate / best,
             100 * full / best, human_bytes(one.bytes()), time_text(one.exchange_seconds),
             time_text(one.exposed_seconds), to_text(one.candidate), added_text(one));
}

// Of a family that is not the best's: why not.
std::string reason_of(const Outcome& one, const Outcome& best) {
  switch (one.verdict) {
    case Verdict::kPlanned: {
      const double exposed = one.exposed_seconds - best.exposed_seconds;
      const double waiting = one.waiting_seconds - best.waiting_seconds;
      const double compute = one.seconds - best.seconds - exposed - waiting;
      const std::string waits =
          waiting > 0 ? str(", {} more in waiting for other stages", time_text(waiting)) : std::string();
      return str("{}, {:.0f} % more: {} more in exchanges that nothing hides, {} more in computation{}",
                 time_text(one.seconds), 100 * (one.seconds / best.seconds - 1), time_text(std::max(0.0, exposed)),
                 time_text(std::max(0.0, compute)), waits);
    }
    case Verdict::kNotFaster:
      return str("{}: no plan takes less than {}", one.is_open ? "not looked at to the end" : "not faster",
                 time_text(one.least_seconds));
    case Verdict::kDoesNotFit:
      return str("does not fit: {}", one.why);
    case Verdict::kTooLarge:
      return str("does not fit: {}", one.why);
    case Verdict::kImpossible:
      return str("cannot be: {}", one.why);
  }
  return one.why;
}

// The best of each family, or what says most of it: outcomes are in that order.
std::array<const Outcome*, kFamilies> first_of_families(const SearchResult& result) {
  std::array<const Outcome*, kFamilies> first{};
  for (const Outcome& one : result.outcomes) {
    const Outcome*& place = first[static_cast<size_t>(family_of(one.candidate))];
    if (place == nullptr) place = &one;
  }
  return first;
}

std::string config_of(const Candidate& one, const SearchSubject& subject) {
  std::string text = "[parallel]\n";
  const auto add = [&](std::string_view key, int64_t value) { text += str("{} = {}\n", key, value); };
  if (one.pp > 1) add("pp", one.pp);
  if (one.dp_replicate > 1) add("dp_replicate", one.dp_replicate);
  if (one.dp_shard > 1) add("dp_shard", one.dp_shard);
  if (one.cp > 1) add("cp", one.cp);
  if (one.zero > 0) add("zero", one.zero);
  if (one.tp > 1) add("tp", one.tp);
  if (subject.overlaps) text += "overlap = true\n";
  text += "[train]\n";
  add("batch_size", subject.rows / one.micro_batches);
  add("micro_batches", one.micro_batches);
  return text;
}

}  // namespace

std::string to_text(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top) {
  std::string out =
      str("{}, {} rows of {} tokens a step, on {}\n", subject.title, subject.rows, subject.tokens, title_of(cluster));
  out += str("{} {}, {} plans in {}: {} fit, {} cannot be faster, {} are too large, {} cannot be\n",
             result.outcomes.size(), result.outcomes.size() == 1 ? "way" : "ways", result.planned,
             time_text(result.seconds), result.count(Verdict::kPlanned), result.count(Verdict::kNotFaster),
             result.count(Verdict::kDoesNotFit) + result.count(Verdict::kTooLarge), result.count(Verdict::kImpossible));
  if (result.open() > 0)
    out +=
        str("{} of {} ways were not looked at to the end, for the search stops after so many plans: one of them may be "
            "faster; --plans lets it make more, --pin leaves fewer ways\n",
            result.open(), result.outcomes.size());
  out += "\n";
  const Outcome* best = result.best();
  if (best == nullptr) return out + nothing_fits(result, cluster) + "\n";
  out += str("{:>3}  {:>10}  {:>9}  {:>8}  {:>7}  {:>6}  {:>6}  {:>10}  {:>10}  {:>10}\n", "", "step", "tokens/s",
             "a device", "TFLOP/s", "MFU", "of all", "memory", "exchanges", "exposed");
  for (size_t i = 0; i < std::min(top, result.count(Verdict::kPlanned)); ++i)
    out += row_of(i + 1, result.outcomes[i], subject, cluster);
  out +=
      str("MFU: of the device's best matmul rate in 16 bits, {:.3g} TFLOP/s; causal attention is half its pairs, \"of "
          "all\": all\n",
          cluster.target.narrow_flops_per_second / kTera);
  std::string others;
  for (const Outcome* one : first_of_families(result))
    if (one != nullptr && family_of(one->candidate) != family_of(best->candidate))
      others +=
          str("  {}: {}: {}\n", name_of(family_of(one->candidate)), to_text(one->candidate), reason_of(*one, *best));
  if (!others.empty()) out += "\nother families, the best of each\n" + others;
  out += str("\n{}\n", helps_most(result, cluster));
  return out + "\nthe first, in run.toml\n" + config_of(best->candidate, subject) +
         "\nThese are predictions: plans of the step, simulated; models deeper than " + str("{}", kDeep) +
         " layers by what a further layer adds.\n";
}

std::string to_table(const std::vector<SearchAnswer>& answers) {
  std::string out = str("{:<14} {:>8} {:>7}  {:<9} {:>10}  {:>10}  {:>9}  {:>6}  {:>10}  {}\n", "cluster", "rows",
                        "tokens", "compute", "memory", "step", "tokens/s", "MFU", "taken", "the best way");
  for (const auto& [subject, cluster, result] : answers) {
    out += str("{:<14} {:>8} {:>7}  {:<9} {:>10}  ", cluster.name, subject.rows, subject.tokens, subject.compute,
               human_bytes(static_cast<uint64_t>(cluster.memory_bytes())));
    const Outcome* best = result.best();
    if (best == nullptr) {
      out += str("{}\n", nothing_fits(result, cluster));
      continue;
    }
    const double rate = flops_a_second(subject.flops_per_token, subject, cluster, best->seconds);
    out += str("{:>10}  {:>9}  {:>4.0f} %  {:>10}  {}{}\n", time_text(best->seconds),
               human_count(tokens_of(subject) / best->seconds), 100 * rate / cluster.target.narrow_flops_per_second,
               human_bytes(best->bytes()), to_text(best->candidate), added_text(*best));
  }
  return out;
}

std::string nothing_fits(const SearchResult& result, const Cluster& cluster) {
  if (const size_t open = result.open(); open > 0)
    return str("nothing fits of the ways that were looked at to the end, {} of {}", result.outcomes.size() - open,
               result.outcomes.size());
  const auto memory = static_cast<uint64_t>(cluster.memory_bytes());
  const Outcome* smallest = nullptr;
  for (const Outcome& one : result.outcomes) {
    if (one.verdict != Verdict::kDoesNotFit && one.verdict != Verdict::kTooLarge) continue;
    const auto bytes = [](const Outcome& of) { return std::max(of.bytes(), of.least_bytes); };
    if (smallest == nullptr || bytes(one) < bytes(*smallest)) smallest = &one;
  }
  if (smallest == nullptr)
    return str("no way can be: {}",
               result.outcomes.empty() ? std::string("there is none") : result.outcomes.front().why);
  const uint64_t bytes = std::max(smallest->bytes(), smallest->least_bytes);
  return str(
      "nothing fits: what takes least memory is {} with {} a device, {} more than the {} of {}; give more devices, "
      "fewer or shorter rows, or a device with more memory",
      to_text(smallest->candidate), human_bytes(bytes), human_bytes(bytes - std::min(bytes, memory)),
      human_bytes(memory), device_title(cluster));
}

std::string helps_most(const SearchResult& result, const Cluster& cluster) {
  constexpr double kWorthwhile = 0.01;
  const Outcome& best = *result.best();
  const Outcome* roomiest = &best;
  for (const Outcome& one : result.outcomes)
    if (one.roomy_seconds > 0 && one.roomy_seconds < roomiest->roomy_seconds) roomiest = &one;
  const double by_memory = 1 - roomiest->roomy_seconds / best.seconds;
  const double by_links = best.exposed_seconds / 2 / best.seconds;
  if (std::max(by_memory, by_links) < kWorthwhile)
    return "what would help most: devices that compute faster; neither more memory nor faster links gain 1 %";
  if (by_links >= by_memory)
    return str(
        "what would help most: links twice as fast, {:.0f} % less: {} of the step are exchanges that nothing hides",
        100 * by_links, time_text(best.exposed_seconds));
  return str("what would help most: {} a device, of which there are {}: {} would take {}, {:.0f} % less",
             human_bytes(roomiest->roomy_bytes), human_bytes(static_cast<uint64_t>(cluster.memory_bytes())),
             to_text(roomiest->candidate), time_text(roomiest->roomy_seconds), 100 * by_memory);
}

std::string to_json(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster) {
  constexpr auto kVerdicts =
      std::to_array<std::string_view>({"planned", "not faster", "does not fit", "too large", "impossible"});
  using nlohmann::ordered_json;
  ordered_json outcomes = ordered_json::array();
  for (const Outcome& one : result.outcomes) {
    const Candidate& way = one.candidate;
    ordered_json row = {{"pp", way.pp},
                        {"dp_replicate", way.dp_replicate},
                        {"dp_shard", way.dp_shard},
                        {"cp", way.cp},
                        {"tp", way.tp},
                        {"zero", way.zero},
                        {"micro_batches", way.micro_batches},
                        {"verdict", kVerdicts[static_cast<size_t>(one.verdict)]},
                        {"least_seconds", one.least_seconds},
                        {"least_bytes", one.least_bytes}};
    if (one.verdict == Verdict::kPlanned || one.verdict == Verdict::kDoesNotFit) {
      row["seconds"] = one.seconds;
      row["exchange_seconds"] = one.exchange_seconds;
      row["exposed_seconds"] = one.exposed_seconds;
      row["waiting_seconds"] = one.waiting_seconds;
      row["state_bytes"] = one.state_bytes;
      row["step_bytes"] = one.step_bytes;
      row["recomputes"] = one.recomputes;
    }
    if (one.is_open) row["is_open"] = true;
    if (!one.why.empty()) row["why"] = one.why;
    outcomes.push_back(std::move(row));
  }
  const ordered_json whole = {{"title", subject.title},         {"cluster", cluster.name},
                              {"devices", cluster.devices()},   {"memory_bytes", cluster.memory_bytes()},
                              {"rows", subject.rows},           {"row_tokens", subject.tokens},
                              {"planned", result.planned},      {"search_seconds", result.seconds},
                              {"outcomes", std::move(outcomes)}};
  return whole.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace stepc
