// The values of a chat template: Python's, as far as templates use them. Lists and maps are shared, as in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace stepc {

class TemplateValue {
 public:
  using List = std::vector<TemplateValue>;
  using Map = std::vector<std::pair<std::string, TemplateValue>>;  // in order of insertion
  struct Undefined {};
  struct None {};

  TemplateValue() = default;  // undefined
  template <class T>
  explicit(false) TemplateValue(T value) : value_(std::move(value)) {}
  static TemplateValue none() { return TemplateValue(None()); }
  // Nested too deep, or with a namespace inside, is a UserError: so values have no cycles and die without recursion.
  static TemplateValue list(List values);
  static TemplateValue map(Map values);
  // A map that {% set %} may change.
  static TemplateValue name_space(Map values);
  // The members of an object in the order of their names.
  static TemplateValue from_json(const Json& json);

  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&value_);
  }
  [[nodiscard]] const std::string* text() const { return as<std::string>(); }
  [[nodiscard]] const int64_t* integer() const { return as<int64_t>(); }
  [[nodiscard]] List* list() const;
  [[nodiscard]] Map* map() const;
  [[nodiscard]] bool is_namespace() const;
  [[nodiscard]] bool is_undefined() const { return as<Undefined>() != nullptr; }
  [[nodiscard]] bool is_none() const { return as<None>() != nullptr; }

  [[nodiscard]] bool is_true() const;
  // "text", "a list", ...: for messages.
  [[nodiscard]] std::string_view type_name() const;
  // The member of a map; undefined if there is none.
  [[nodiscard]] TemplateValue member(std::string_view key) const;

 private:
  template <class Values>
  struct Box {
    Values values;
    int depth = 0;
    bool is_namespace = false;
  };
  [[nodiscard]] int depth() const;

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<Box<List>>,
               std::shared_ptr<Box<Map>>>
      value_;
};

// Both look at a million values at most; more is a UserError.
bool equal(const TemplateValue& a, const TemplateValue& b);
// As Python's json.dumps(value, ensure_ascii=False).
std::string json_text(const TemplateValue& value);
// What {{ value }} prints; a list or a map is a UserError.
std::string printed(const TemplateValue& value);

}  // namespace stepc
