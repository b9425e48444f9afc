#include "models/config_fields.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/json.h"

namespace stepc::models {
namespace {
using nlohmann::json;

int64_t integer(const std::string& name, const json& value, int64_t low, int64_t high) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  USER_CHECK(fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high,
             "config.json: {} is {}; expected an integer from {} to {}", name, shown(value), low, high);
  return value.get<int64_t>();
}

double real(const std::string& name, const json& value, double low, double high) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  USER_CHECK(number >= low && number <= high, "config.json: {} is {}; expected a number from {} to {}", name,
             shown(value), low, high);
  return number;
}

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}
}  // namespace

json ConfigFields::take(const std::string& name) const {
  const auto found = source_.find(name);
  return found == source_.end() ? json() : *found;
}

void ConfigFields::size(const std::string& name, int64_t& value, int64_t highest) {
  if (!reads()) return put(name, value);
  const json given = take(name);
  USER_CHECK(!given.is_null() || value != 0, "config.json: {} is missing", name);
  if (!given.is_null()) value = integer(name, given, 1, highest);
}

void ConfigFields::count(const std::string& name, int64_t& value, int64_t highest) {
  if (!reads()) return put(name, value);
  const json given = take(name);
  if (!given.is_null()) value = integer(name, given, 0, highest);
}

void ConfigFields::optional_size(const std::string& name, std::optional<int64_t>& value, int64_t highest) {
  if (!reads()) return put(name, or_null(value));
  if (!has(name)) return;
  const json given = take(name);
  value = given.is_null() ? std::nullopt : std::optional(integer(name, given, 1, highest));
}

void ConfigFields::number(const std::string& name, double& value, double low, double high) {
  if (!reads()) return put(name, value);
  const json given = take(name);
  if (!given.is_null()) value = real(name, given, low, high);
}

void ConfigFields::optional_number(const std::string& name, std::optional<double>& value, double low, double high) {
  if (!reads()) return put(name, or_null(value));
  if (!has(name)) return;
  const json given = take(name);
  value = given.is_null() ? std::nullopt : std::optional(real(name, given, low, high));
}

void ConfigFields::flag(const std::string& name, bool& value) {
  if (!reads()) return put(name, value);
  const json given = take(name);
  USER_CHECK(given.is_null() || given.is_boolean(), "config.json: {} is {}; expected true or false", name,
             shown(given));
  if (given.is_boolean()) value = given.get<bool>();
}

void ConfigFields::choice(const std::string& name, std::string& value, const std::vector<std::string>& known) {
  if (!reads()) return put(name, value);
  const json given = take(name);
  if (given.is_null()) return;
  USER_CHECK(given.is_string() && std::ranges::find(known, given.get<std::string>()) != known.end(),
             "config.json: {} is {}; stepc supports only {}", name, shown(given), fmt::join(known, ", "));
  value = given.get<std::string>();
}

void ConfigFields::token(const std::string& name, std::optional<int64_t>& value, int64_t vocab_size) {
  if (!reads()) return put(name, or_null(value));
  if (!has(name)) return;
  const json given = take(name);
  value = given.is_null() ? std::nullopt : std::optional(integer(name, given, 0, vocab_size - 1));
}

void ConfigFields::tokens(const std::string& name, std::vector<int64_t>& values, int64_t vocab_size) {
  if (!reads()) return put(name, values.empty() ? json() : values.size() == 1 ? json(values.front()) : json(values));
  if (!has(name)) return;
  json given = take(name);
  values.clear();
  if (given.is_null()) return;
  if (!given.is_array()) given = json::array({given});
  for (const json& id : given) values.push_back(integer(name, id, 0, vocab_size - 1));
}

void ConfigFields::only(const std::string& name, const json& supported) {
  if (!reads()) return put(name, supported);
  const json given = take(name);
  USER_CHECK(given.is_null() || given == supported, "config.json: {} is {}; stepc supports only {}", name, shown(given),
             supported.dump());
}

void ConfigFields::sliding_layers(const std::string& name, std::vector<bool>& value, int64_t layers) {
  constexpr const char* kSliding = "sliding_attention";
  constexpr const char* kFull = "full_attention";
  if (!reads()) {
    json types = json::array();
    for (const bool slides : value) types.push_back(slides ? kSliding : kFull);
    return put(name, value.empty() ? json() : types);
  }
  const json given = take(name);
  if (given.is_null()) return;
  USER_CHECK(given.is_array() && static_cast<int64_t>(given.size()) == layers,
             "config.json: {} is {}; expected a list of {} entries, one a layer", name, shown(given), layers);
  value.clear();
  for (const json& type : given) {
    USER_CHECK(type == kSliding || type == kFull, "config.json: {} has {}; stepc supports only {}, {}", name,
               shown(type), kFull, kSliding);
    value.push_back(type == kSliding);
  }
}

}  // namespace stepc::models
