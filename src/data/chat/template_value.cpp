#include "data/chat/template_value.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace stepc {

namespace {
constexpr int kMaxValueDepth = 64;
constexpr size_t kMaxValues = 1'000'000;  // that one comparison or tojson looks at

void count_one(size_t& left) {
  USER_CHECK(left-- > 0, "the template looks at more than {} values at once", kMaxValues);
}

void check_depth(int depth) {
  USER_CHECK(depth <= kMaxValueDepth, "the template nests values more than {} deep", kMaxValueDepth);
}
}  // namespace

int TemplateValue::depth() const {
  USER_CHECK(!is_namespace(), "the template puts a namespace into a value, which is not supported");
  if (const auto* box = as<std::shared_ptr<Box<List>>>()) return (*box)->depth;
  if (const auto* box = as<std::shared_ptr<Box<Map>>>()) return (*box)->depth;
  return 0;
}

TemplateValue TemplateValue::list(List values) {
  int depth = 0;
  for (const auto& value : values) depth = std::max(depth, value.depth());
  check_depth(depth + 1);
  return TemplateValue(std::make_shared<Box<List>>(Box<List>{std::move(values), depth + 1, false}));
}

TemplateValue TemplateValue::map(Map values) {
  int depth = 0;
  for (const auto& [key, value] : values) depth = std::max(depth, value.depth());
  check_depth(depth + 1);
  return TemplateValue(std::make_shared<Box<Map>>(Box<Map>{std::move(values), depth + 1, false}));
}

TemplateValue TemplateValue::name_space(Map values) {
  TemplateValue result = map(std::move(values));
  std::get<std::shared_ptr<Box<Map>>>(result.value_)->is_namespace = true;
  return result;
}

bool TemplateValue::is_namespace() const {
  const auto* box = as<std::shared_ptr<Box<Map>>>();
  return box && (*box)->is_namespace;
}

TemplateValue TemplateValue::from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      List values;
      for (const Json& value : json) values.push_back(from_json(value));
      return list(std::move(values));
    }
    case Json::value_t::object: {
      Map values;
      for (const auto& [key, value] : json.items()) values.emplace_back(key, from_json(value));
      return map(std::move(values));
    }
    default:
      return none();
  }
}

TemplateValue::List* TemplateValue::list() const {
  const auto* box = as<std::shared_ptr<Box<List>>>();
  return box ? &(*box)->values : nullptr;
}

TemplateValue::Map* TemplateValue::map() const {
  const auto* box = as<std::shared_ptr<Box<Map>>>();
  return box ? &(*box)->values : nullptr;
}

bool TemplateValue::is_true() const {
  if (const bool* value = as<bool>()) return *value;
  if (const int64_t* value = integer()) return *value != 0;
  if (const double* value = as<double>()) return *value != 0;
  if (const std::string* value = text()) return !value->empty();
  if (const List* values = list()) return !values->empty();
  if (const Map* values = map()) return !values->empty();
  return false;
}

std::string_view TemplateValue::type_name() const {
  constexpr std::string_view kNames[] = {"an undefined value", "none", "a boolean", "a whole number",
                                         "a number",           "text", "a list",    "a map"};
  return kNames[value_.index()];
}

TemplateValue TemplateValue::member(std::string_view key) const {
  if (const Map* values = map())
    for (const auto& [name, value] : *values)
      if (name == key) return value;
  return {};
}

namespace {
std::optional<double> number_of(const TemplateValue& value) {
  if (const auto* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = value.integer()) return static_cast<double>(*whole);
  if (const auto* real = value.as<double>()) return *real;
  return std::nullopt;
}

bool equal_within(const TemplateValue& a, const TemplateValue& b, size_t& left) {
  count_one(left);
  if (number_of(a) || number_of(b)) return number_of(a) == number_of(b);
  if (a.text() && b.text()) return *a.text() == *b.text();
  const auto equal_values = [&](const auto& x, const auto& y) { return equal_within(x, y, left); };
  if (a.list() && b.list())
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal_values);
  if (a.map() && b.map()) {
    if (a.map() == b.map()) return true;
    if (a.map()->size() != b.map()->size()) return false;
    return std::all_of(a.map()->begin(), a.map()->end(),
                       [&](const auto& entry) { return equal_values(entry.second, b.member(entry.first)); });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::string json_within(const TemplateValue& value, size_t& left) {
  count_one(left);
  if (value.is_none()) return "null";
  if (const auto* flag = value.as<bool>()) return *flag ? "true" : "false";
  if (const auto* text = value.text()) return Json(*text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string result;
  if (const auto* values = value.list()) {
    for (const auto& one : *values) result += (result.empty() ? "" : ", ") + json_within(one, left);
    return "[" + result + "]";
  }
  if (const auto* values = value.map()) {
    for (const auto& [key, one] : *values)
      result += (result.empty() ? "" : ", ") + json_within(key, left) + ": " + json_within(one, left);
    return "{" + result + "}";
  }
  USER_CHECK(!value.is_undefined(), "the template gives tojson an undefined value");
  return printed(value);
}
}  // namespace

bool equal(const TemplateValue& a, const TemplateValue& b) {
  size_t left = kMaxValues;
  return equal_within(a, b, left);
}

std::string json_text(const TemplateValue& value) {
  size_t left = kMaxValues;
  return json_within(value, left);
}

std::string printed(const TemplateValue& value) {
  if (value.is_undefined()) return {};
  if (value.is_none()) return "None";
  if (const auto* text = value.text()) return *text;
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* whole = value.integer()) return std::to_string(*whole);
  USER_CHECK(!value.list() && !value.map(), "the template prints {}, which is not supported without tojson",
             value.type_name());
  return Json(*value.as<double>()).dump();
}

}  // namespace stepc
