#include "models/rotary_fields.h"

#include "base/check.h"
#include "base/json.h"
#include "models/config_limits.h"

namespace stepc::models {
namespace {
using nlohmann::json;

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
  USER_CHECK(type == "linear" || type == "llama3",
             "config.json: {} has rope_type {}; stepc supports only \"default\", \"linear\", \"llama3\"", name,
             shown(type));
  rotary.scaling = type == "linear" ? Rotary::Scaling::kLinear : Rotary::Scaling::kLlama3;
  USER_CHECK(inner.has("factor"), "config.json: {} lacks factor", name);
  inner.number("factor", rotary.factor, 1.0, 1e6);
  if (type == "linear") return;
  inner.number("low_freq_factor", rotary.low_freq_factor, 1e-3, 1e6);
  inner.number("high_freq_factor", rotary.high_freq_factor, 1e-3, 1e6);
  inner.size("original_max_position_embeddings", rotary.original_max_position_embeddings, kMaxPositions);
  USER_CHECK(rotary.high_freq_factor > rotary.low_freq_factor,
             "config.json: {} has low_freq_factor {} and high_freq_factor {}; the second must be the greater", name,
             rotary.low_freq_factor, rotary.high_freq_factor);
}

json written_scaling(const Rotary& rotary) {
  if (rotary.scaling == Rotary::Scaling::kNone) return nullptr;
  if (rotary.scaling == Rotary::Scaling::kLinear) return {{"rope_type", "linear"}, {"factor", rotary.factor}};
  return {{"rope_type", "llama3"},
          {"factor", rotary.factor},
          {"low_freq_factor", rotary.low_freq_factor},
          {"high_freq_factor", rotary.high_freq_factor},
          {"original_max_position_embeddings", rotary.original_max_position_embeddings}};
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
