#include "models/rotary_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "models/config_limits.h"

namespace stepc::models {
namespace {
using nlohmann::json;

constexpr std::array<std::pair<const char*, Rotary::Scaling>, 3> kScalings = {{{"linear", Rotary::Scaling::kLinear},
                                                                               {"dynamic", Rotary::Scaling::kDynamic},
                                                                               {"llama3", Rotary::Scaling::kLlama3}}};

// A family without partial rotation has no place for the field.
void fraction(ConfigFields& fields, Rotary& rotary) {
  const bool partial = rotary.fraction != 1.0;
  if (partial) fields.number("partial_rotary_factor", rotary.fraction, 0.0, 1.0);
  if (!partial && fields.reads()) fields.only("partial_rotary_factor", 1.0);
}

void read_scaling(const char* name, const json& object, Rotary& rotary) {
  USER_CHECK(object.is_object(), "config.json: {} is {}; expected an object or null", name, shown(object));
  ConfigFields inner(object);
  const json type = inner.has("rope_type") ? inner.take("rope_type") : inner.take("type");
  inner.number("rope_theta", rotary.theta, 1.0, 1e12);
  fraction(inner, rotary);
  if (type == "default") return;
  const auto* known = std::ranges::find_if(kScalings, [&](const auto& scaling) { return type == scaling.first; });
  USER_CHECK(known != kScalings.end(),
             "config.json: {} has rope_type {}; stepc supports only \"default\", \"linear\", \"dynamic\", \"llama3\"",
             name, shown(type));
  rotary.scaling = known->second;
  USER_CHECK(inner.has("factor"), "config.json: {} lacks factor", name);
  inner.number("factor", rotary.factor, 1.0, 1e6);
  if (rotary.scaling != Rotary::Scaling::kLlama3) return;
  inner.number("low_freq_factor", rotary.low_freq_factor, 1e-3, 1e6);
  inner.number("high_freq_factor", rotary.high_freq_factor, 1e-3, 1e6);
  inner.size("original_max_position_embeddings", rotary.original_max_position_embeddings, kMaxPositions);
  USER_CHECK(rotary.high_freq_factor > rotary.low_freq_factor,
             "config.json: {} has low_freq_factor {} and high_freq_factor {}; the second must be the greater", name,
             rotary.low_freq_factor, rotary.high_freq_factor);
}

json written_scaling(const Rotary& rotary) {
  if (rotary.scaling == Rotary::Scaling::kNone) return nullptr;
  json written = {{"factor", rotary.factor}};
  for (const auto& [name, scaling] : kScalings)
    if (scaling == rotary.scaling) written["rope_type"] = name;
  if (rotary.scaling != Rotary::Scaling::kLlama3) return written;
  written["low_freq_factor"] = rotary.low_freq_factor;
  written["high_freq_factor"] = rotary.high_freq_factor;
  written["original_max_position_embeddings"] = rotary.original_max_position_embeddings;
  return written;
}
}  // namespace

void rotary_fields(ConfigFields& fields, Rotary& rotary) {
  fields.number("rope_theta", rotary.theta, 1.0, 1e12);
  fraction(fields, rotary);
  if (!fields.reads()) return fields.put("rope_scaling", written_scaling(rotary));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json object = fields.take(name);
    if (!object.is_null()) read_scaling(name, object, rotary);
  }
}

}  // namespace stepc::models
