#include "engine/prediction.h"

#include <fmt/ranges.h>

#include <ATen/Context.h>

#include "aten/device_facts.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "codegen/cpu_target.h"
#include "cost/named_target.h"
#include "cost/profile.h"
#include "cost/target_file.h"
#include "engine/config.h"

namespace stepc {

KnownTarget known_target(const std::filesystem::path& kernel_directory, const Features& features, int threads) {
  KnownTarget known;
  known.target.features = features;
  known.target.threads = threads;
  try {
    if (auto kept = kept_target(kernel_directory, threads)) {
      static const std::string kCpu = host_cpu().name;
      USER_CHECK(kept->cpu.empty() || kept->cpu == kCpu,
                 "{}: cpu = \"{}\", and this machine's is {}; measure again with `stepc calibrate`",
                 target_file(kernel_directory, threads).string(), kept->cpu, kCpu);
      known.target = std::move(*kept);
      known.is_calibrated = true;
    }
  } catch (const UserError& error) {
    log().warn("{}", error.what());  // a prediction is no reason to end a run
  }
  return known;
}

KnownTarget known_target(const Config& config, const Features& features, int threads) {
  if (!config.target || config.target->gpu) return known_target(config.kernel_directory, features, threads);
  USER_CHECK(config.target->threads == threads, "Config::target is one of {} threads, and this process runs with {}",
             config.target->threads, threads);
  return {*config.target, !(config.target->rates == Rates())};
}

std::optional<Target> target_of_card(const c10::Device& device) {
  const auto facts = device_facts(device);
  if (!facts) return std::nullopt;
  return target_of_card(facts->name, facts->total_bytes, facts->multiprocessors, at::globalContext().allowTF32CuBLAS());
}

std::string why_not_weighed(const c10::Device& device) {
  return str("those of {} are not known, those of {} are: give another value", name_of(device, device_facts(device)),
             fmt::join(target_names(), ", "));
}

bool is_priced(const Schedule& schedule, const KnownTarget& known) {
  return schedule.device.empty() || known.target.gpu.has_value();
}

Timeline timeline_of(const Schedule& schedule, const KnownTarget& known) {
  if (!known.target.gpu) return simulate(schedule, known.target);
  Schedule on_card = schedule;
  on_card.features = known.target.features;
  return simulate(on_card, known.target);
}

Prediction predict(const Schedule& schedule, const KnownTarget& known) {
  const Timeline timeline = timeline_of(schedule, known);
  return {.seconds = timeline.seconds,
          .is_calibrated = known.is_calibrated,
          .is_of_card = known.target.gpu.has_value(),
          .exchange_seconds = timeline.exchange_seconds,
          .exposed_seconds = timeline.exposed_seconds};
}

std::string_view source_of(const Prediction& prediction) {
  if (prediction.is_of_card) return "from data sheets and published rates of the card";
  if (prediction.is_calibrated) return "from this machine's rates";
  if (prediction.is_scaled)
    return "from default rates, scaled by the matmuls measured here: `stepc calibrate` measures the rest";
  return "from default rates: `stepc calibrate` measures this machine's";
}

std::string to_text(const Prediction& prediction) {
  return str("{} a step, {}", time_text(prediction.seconds), source_of(prediction));
}

std::string to_text(const AutoBudget& weighed, const KnownTarget& known) {
  const auto cost = [](const PlanCost& one) {
    return str("{} and {} a step", time_text(one.seconds), human_bytes(one.peak_bytes));
  };
  const std::string instead =
      weighed.chosen == weighed.without ? "as without it" : str("without it {}", cost(weighed.without));
  return str("expected {}, {}; weighed with {}", cost(weighed.chosen), instead,
             known.target.gpu      ? "published rates of the card"
             : known.is_calibrated ? "this machine's rates"
                                   : "default rates: `stepc calibrate` measures this machine's");
}

}  // namespace stepc
