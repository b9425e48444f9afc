#include "engine/ranks/common_machine.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cost/target.h"
#include "engine/ranks/consensus.h"
#include "runtime/micro_kernels.h"

namespace stepc {

namespace {

using Json = nlohmann::json;

std::string text_of(const CpuTarget& cpu, const KnownTarget& known) {
  return Json{{"name", cpu.name},
              {"features", cpu.features},
              {"vector_bits", cpu.vector_bits},
              {"fma", cpu.has_fma},
              {"f16c", cpu.has_f16c},
              {"target", to_text(known.target)},
              {"calibrated", known.is_calibrated}}
      .dump();
}

CpuTarget cpu_of(const Json& json) {
  return {json.at("name"), json.at("features"), json.at("vector_bits"), json.at("fma"), json.at("f16c")};
}

blocked::MicroKernels only(blocked::MicroKernels kernels, const Features& features) {
  if (!features.bf16) kernels.bf16 = nullptr;
  if (!features.f32) kernels.f32 = nullptr;
  kernels.avx512 = features.avx512;
  kernels.intel = features.intel;
  return kernels;
}

}  // namespace

CpuTarget common_cpu(const std::vector<CpuTarget>& all) {
  if (std::ranges::all_of(all, [&](const CpuTarget& one) { return one == all[0]; })) return all[0];
  int bits = all[0].vector_bits;
  bool has_fma = true;
  for (const CpuTarget& one : all) {
    bits = std::min(bits, one.vector_bits);
    has_fma = has_fma && one.has_fma && one.has_f16c;
  }
  if (bits >= 512 && has_fma) return {"x86-64-v4", "", 512, true, true};
  if (bits >= 256 && has_fma) return {"x86-64-v3", "", 256, true, true};
  return generic_cpu();
}

Features common_features(const std::vector<Features>& all) {
  Features common = all.at(0);
  for (const Features& one : all)
    for (const FeatureName& name : kFeatureNames) common.*name.there = common.*name.there && one.*name.there;
  return common;
}

CommonMachine common_machine(const CpuTarget& cpu, const blocked::MicroKernels& kernels, const KnownTarget& known,
                             Ranks& ranks) {
  KnownTarget own = known;
  own.target.features = features_of(kernels);
  std::vector<CpuTarget> cpus;
  std::vector<Features> features;
  CommonMachine common;
  for (const std::string& text : ranks.exchange(text_of(cpu, own))) {
    const Json json = Json::parse(text);
    const Target target = parse_target(json.at("target").get<std::string>());
    if (cpus.empty()) common.known = {target, json.at("calibrated")};
    cpus.push_back(cpu_of(json));
    features.push_back(target.features);
  }
  common.cpu = common_cpu(cpus);
  const Features all_have = common_features(features);
  common.micro_kernels = only(kernels, all_have);
  common.known.target.features = all_have;
  for (size_t r = 1; r < cpus.size() && common.told.empty(); ++r)
    if (cpus[r] != cpus[0] || features[r] != features[0])
      common.told = str(
          "the machines of the ranks differ (rank 0: {} with {}; rank {}: {} with {}): all compute with what all have, "
          "{} with {}",
          cpus[0].name, to_text(features[0]), r, cpus[r].name, to_text(features[r]), common.cpu.name,
          to_text(all_have));
  return common;
}

CommonCard common_card(const c10::Device& device, const std::optional<Target>& given, Ranks& ranks) {
  const std::optional<Target> own = given && given->gpu ? given : target_of_card(device);
  CommonCard common{{}, common_error(ranks, own ? std::string() : why_not_weighed(device))};
  if (common.why_unknown.empty()) common.known.target = parse_target(ranks.exchange(to_text(*own))[0]);
  return common;
}

}  // namespace stepc
