// Attrs: the constants of a Graph node, a small map from name to value, ordered by name. Plain data with equality
// (doubles by their bits, so that NaN equals itself) and a text form: {dims=[1], dtype=bf16, value=0.5}.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "ir/dtype.h"

namespace stepc {

using AttrValue = std::variant<bool, int64_t, double, DType, std::string, std::vector<int64_t>, std::vector<double>>;

// Bit by bit: NaN is NaN, and -0 is not 0.
inline bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
bool same_attr(const AttrValue& a, const AttrValue& b);
std::string to_text(const AttrValue& value);

struct Attr {
  std::string name;
  AttrValue value;
  bool operator==(const Attr& other) const { return name == other.name && same_attr(value, other.value); }
};

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<Attr> attrs);

  [[nodiscard]] const AttrValue* find(std::string_view name) const;
  void set(std::string_view name, AttrValue value);

  // The value of an attribute that is there and of type T; anything else is an InternalError.
  template <class T>
  [[nodiscard]] const T& get(std::string_view name) const {
    const AttrValue* value = find(name);
    INTERNAL_CHECK(value != nullptr, "attribute '{}' is missing", name);
    const T* typed = std::get_if<T>(value);
    INTERNAL_CHECK(typed != nullptr, "attribute '{}' is {}, of another kind than asked for", name, to_text(*value));
    return *typed;
  }
  // A number, whether written as integer, real or bool.
  [[nodiscard]] double number(std::string_view name) const;

  [[nodiscard]] const std::vector<Attr>& list() const { return attrs_; }
  [[nodiscard]] bool empty() const { return attrs_.empty(); }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<Attr> attrs_;  // by name
};

// "" for no attributes, else "{name=value, ...}".
std::string to_text(const Attrs& attrs);

}  // namespace stepc
