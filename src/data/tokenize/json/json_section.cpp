#include "data/tokenize/json/json_section.h"

#include <algorithm>

#include "base/check.h"

namespace stepc {

namespace {
std::string shown_with_type(const Json& value) {
  if (!value.is_object() || !value.contains("type")) return shown(value);
  return str("of type {}", shown(value["type"]));
}
}  // namespace

JsonSection::JsonSection(const Json& json, std::string what, std::initializer_list<std::string_view> known)
    : json_(json), what_(std::move(what)) {
  USER_CHECK(json.is_object(), "{}: expected an object, found {}", what_, shown(json));
  for (const auto& [key, value] : json.items()) {
    const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
    USER_CHECK(is_known, "{}: field {} is not supported", what_, in_quotes(key));
  }
}

void JsonSection::only(const std::string& key, std::initializer_list<Json> values) const {
  const auto found = json_.find(key);
  if (found == json_.end()) return;
  const bool good = std::find(values.begin(), values.end(), *found) != values.end();
  USER_CHECK(good, "{}: {} is {}; stepc supports {} only", what_, in_quotes(key), shown_with_type(*found),
             shown(*values.begin()));
}

void JsonSection::object_or_null(const std::string& key) const {
  const auto found = json_.find(key);
  const bool good = found == json_.end() || found->is_null() || found->is_object();
  USER_CHECK(good, "{}: {} must be an object or null, found {}", what_, in_quotes(key), shown(*found));
}

bool JsonSection::flag(const std::string& key, bool otherwise) const {
  const auto found = json_.find(key);
  if (found == json_.end()) return otherwise;
  USER_CHECK(found->is_boolean(), "{}: {} must be true or false, found {}", what_, in_quotes(key), shown(*found));
  return found->get<bool>();
}

std::optional<std::string> JsonSection::text_or_null(const std::string& key) const {
  const auto found = json_.find(key);
  if (found == json_.end() || found->is_null()) return std::nullopt;
  return text(key);
}

}  // namespace stepc
