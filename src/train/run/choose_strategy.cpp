#include "train/run/choose_strategy.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cost/cluster.h"
#include "engine/prediction.h"
#include "engine/ranks/choose_mesh.h"
#include "plan/memory_budget.h"
#include "plan/search.h"
#include "plan/search_text.h"
#include "runtime/micro_kernels.h"
#include "train/config/parallel.h"
#include "train/config/resume.h"
#include "train/machine/kernel_directory.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/step/search_run.h"

namespace stepc::train {

namespace {

// Other ranks give up a rank that is silent for longer (trainer.cpp).
constexpr double kSecondsBetweenWords = 5;
constexpr size_t kShown = 5;

using Parallel = RunConfig::Parallel;
constexpr std::array<std::pair<std::string_view, int64_t Parallel::*>, 6> kSearched = {
    {{"pp", &Parallel::pp},
     {"dp_replicate", &Parallel::dp_replicate},
     {"dp_shard", &Parallel::dp_shard},
     {"cp", &Parallel::cp},
     {"tp", &Parallel::tp},
     {"zero", &Parallel::zero}}};

std::optional<int64_t> pin_of(const RunConfig& config, std::string_view key) {
  const auto* const place = std::ranges::find(kSearched, key, &std::pair<std::string_view, int64_t Parallel::*>::first);
  INTERNAL_CHECK(place != kSearched.end(), "{} is not searched for", key);
  const int64_t value = config.parallel.*place->second;
  const bool is_free = !config.given.contains(str("parallel.{}", key)) || value == -1;  // dp_shard: what is left
  return is_free ? std::nullopt : std::optional(value);
}

void set_micro_batches(RunConfig::Train& train, int64_t count) {
  const int64_t rows = train.batch_size * train.micro_batches;
  train.batch_size = rows / count;
  train.micro_batches = count;
}

// The config of the run that is continued, if that run searched for its strategy.
std::optional<RunConfig> searched_before(const RunDirectory& directory) {
  if (!directory.start()) return std::nullopt;
  RunConfig before = saved_run_config(directory.start()->directory);
  return is_searched(before) ? std::optional(std::move(before)) : std::nullopt;
}

// The fixed number of micro-batches, if there is one. A continued run keeps its number if it can.
std::optional<int64_t> micro_batches_of(const RunConfig& config, const std::optional<RunConfig>& before) {
  if (config.given.contains("train.micro_batches")) return config.train.micro_batches;
  const bool can_stay = before && config.train.batch_size % before->train.micro_batches == 0;
  return can_stay ? std::optional(before->train.micro_batches) : std::nullopt;
}

// The strategy of the run that is continued, if it had as many ranks and no key asks for another one.
std::optional<ChosenStrategy> chosen_before(const RunConfig& config, const std::optional<RunConfig>& before,
                                            int64_t ranks) {
  if (!before || strategy_of(*before).mesh.ranks() != ranks) return std::nullopt;
  for (const auto& [key, place] : kSearched)
    if (const auto pin = pin_of(config, key); pin && *pin != before->parallel.*place) return std::nullopt;
  const std::optional<int64_t> micro_batches = micro_batches_of(config, before);
  if (micro_batches != before->train.micro_batches) return std::nullopt;
  ChosenStrategy chosen{config.parallel, config.train, config.memory.budget, {}};
  for (const auto& [key, place] : kSearched) chosen.parallel.*place = before->parallel.*place;
  set_micro_batches(chosen.train, *micro_batches);
  if (!config.given.contains("memory.budget")) chosen.budget = before->memory.budget;
  return chosen;
}

ChosenStrategy searched(const RunConfig& config, const std::optional<RunConfig>& before, const Launch& launch,
                        Ranks& ranks, const at::Device& device, std::optional<double> document_tokens,
                        const std::function<void(size_t done, size_t all)>& progress) {
  const models::DecoderConfig shape = read_model_config(config.model.path);
  const std::optional<Target> card = target_of_card(device);
  USER_CHECK(card || device.is_cpu(), "train.device = \"{}\": parallel.strategy = \"auto\" weighs by rates, and {}",
             config.train.device, why_not_weighed(device));
  const Target target = card ? *card
                             : known_target(kernel_directory(), features_of(probe_micro_kernels()),
                                            static_cast<int>(config.train.threads))
                                   .target;
  Cluster cluster =
      cluster_of_ranks(target, ranks.ranks(), launch.local_ranks, parse_memory_budget(config.memory.budget));
  if (!config.parallel.cluster.empty()) {
    const Cluster measured = named_cluster(config.parallel.cluster);
    USER_CHECK(measured.devices() == ranks.ranks(), "parallel.cluster = {}: it has {} devices, and there are {} ranks",
               in_quotes(config.parallel.cluster), measured.devices(), ranks.ranks());
    cluster.target.rates.links = measured.target.rates.links;
  }
  SearchOptions options;
  options.top = kShown;
  options.pins = search_pins(config.parallel);
  if (const auto pp = pin_of(config, "pp")) options.pins.pp = pp;
  options.pins.dp_replicate = pin_of(config, "dp_replicate");
  options.pins.dp_shard = pin_of(config, "dp_shard");
  options.pins.cp = pin_of(config, "cp");
  options.pins.tp = pin_of(config, "tp");
  options.pins.zero = pin_of(config, "zero");
  options.pins.micro_batches = micro_batches_of(config, before);
  Clock::time_point last_word = Clock::now();
  options.progress = [&](size_t done, size_t all) {
    progress(done, all);
    if (seconds_since(last_word) < kSecondsBetweenWords) return;
    ranks.exchange("");
    last_word = Clock::now();
  };
  const SearchResult result =
      search(search_model(config, shape, adapter_of(config.lora), document_tokens), cluster, options);
  ChosenStrategy chosen{config.parallel, config.train, config.memory.budget, {}};
  chosen.why = to_text(result, search_subject(config, shape), cluster, kShown);
  const Outcome* best = result.best();
  USER_CHECK(best != nullptr, "parallel.strategy = \"auto\": {}", nothing_fits(result, cluster));
  chosen.parallel.pp = best->candidate.pp;
  chosen.parallel.dp_replicate = best->candidate.dp_replicate;
  chosen.parallel.dp_shard = best->candidate.dp_shard;
  chosen.parallel.cp = best->candidate.cp;
  chosen.parallel.tp = best->candidate.tp;
  if (best->candidate.zero > 0) chosen.parallel.zero = best->candidate.zero;
  set_micro_batches(chosen.train, best->candidate.micro_batches);
  if (best->recomputes && chosen.budget == "none") chosen.budget = str("{}MiB", cluster.memory_bytes() >> 20);
  return chosen;
}

std::string to_json(const ChosenStrategy& chosen) {
  Json json = {{"budget", chosen.budget}, {"why", chosen.why}, {"micro_batches", chosen.train.micro_batches}};
  for (const auto& [key, place] : kSearched) json[std::string(key)] = chosen.parallel.*place;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

ChosenStrategy choose_strategy(const RunConfig& config, const RunDirectory& directory, const Launch& launch,
                               Ranks& ranks, const at::Device& device, std::optional<double> document_tokens,
                               const std::function<void(size_t done, size_t all)>& progress) {
  if (ranks.rank() == 0) {
    const std::optional<RunConfig> before = searched_before(directory);
    std::optional<ChosenStrategy> kept = chosen_before(config, before, ranks.ranks());
    ChosenStrategy chosen =
        kept ? std::move(*kept) : searched(config, before, launch, ranks, device, document_tokens, progress);
    ranks.exchange(to_json(chosen));
    return chosen;
  }
  std::string told;
  while (told.empty()) told = ranks.exchange("")[0];
  constexpr std::string_view kWho = "the choice of the first rank";
  const Json json = parse_json(told, kWho);
  ChosenStrategy chosen{config.parallel, config.train, json_string(json, "budget", kWho),
                        json_string(json, "why", kWho)};
  const int64_t rows = config.train.batch_size * config.train.micro_batches;
  set_micro_batches(chosen.train, json_int(json, "micro_batches", kWho, 1, rows));
  for (const auto& [key, place] : kSearched)
    chosen.parallel.*place = json_int(json, std::string(key), kWho, 1, key == "zero" ? 3 : ranks.ranks());
  return chosen;
}

}  // namespace stepc::train
