// An object of a JSON file under the name it has in messages. It refuses fields that it was not told of, because a
// field that is passed over may change what the tokenizer does.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace stepc {

class JsonSection {
 public:
  JsonSection(const Json& json, std::string what, std::initializer_list<std::string_view> known);

  // The field is absent or has one of these values.
  void only(const std::string& key, std::initializer_list<Json> values) const;
  // The field is absent, null or an object.
  void object_or_null(const std::string& key) const;
  [[nodiscard]] bool flag(const std::string& key, bool otherwise) const;
  [[nodiscard]] const std::string& text(const std::string& key) const { return json_string(json_, key, what_); }
  [[nodiscard]] std::optional<std::string> text_or_null(const std::string& key) const;

  [[nodiscard]] const Json& json() const { return json_; }
  [[nodiscard]] const std::string& what() const { return what_; }

 private:
  const Json& json_;
  std::string what_;
};

// Steps of one kind stand alone or in a "Sequence", whose list has the name `list`; `null` is no step. Calls
// step(json, what) for each.
template <class Step>
void for_each_step(const Json& json, const std::string& what, const std::string& list, const Step& step) {
  if (json.is_null()) return;
  if (json_string(json, "type", what) != "Sequence") return step(json, what);
  const JsonSection section(json, what, {"type", list});
  const Json& steps = json_array(json, list, what);
  for (size_t i = 0; i < steps.size(); ++i) step(steps[i], str("{}.{}[{}]", what, list, i));
}

}  // namespace stepc
