#include "ir/attrs.h"

#include <algorithm>
#include <bit>

#include "ir/text/text_cursor.h"

namespace stepc {

bool same_attr(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<double>(&a)) return same_bits(*x, std::get<double>(b));
  if (const auto* x = std::get_if<std::vector<double>>(&a))
    return std::ranges::equal(*x, std::get<std::vector<double>>(b), same_bits);
  return a == b;
}

std::string to_text(const AttrValue& value) {
  struct Text {
    std::string operator()(DType dtype) const { return std::string(name_of(dtype)); }
    std::string operator()(const std::string& text) const { return quoted(text); }
    std::string operator()(const std::vector<int64_t>& values) const { return list_text("[", values); }
    std::string operator()(const std::vector<double>& values) const { return list_text("f[", values); }
    std::string operator()(bool constant) const { return constant_text(constant); }
    std::string operator()(int64_t constant) const { return constant_text(constant); }
    std::string operator()(double constant) const { return constant_text(constant); }
  };
  return std::visit(Text(), value);
}

Attrs::Attrs(std::initializer_list<Attr> attrs) {
  for (const Attr& attr : attrs) set(attr.name, attr.value);
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const Attr& attr : attrs_)
    if (attr.name == name) return &attr.value;
  return nullptr;
}

void Attrs::set(std::string_view name, AttrValue value) {
  const auto place = std::ranges::lower_bound(attrs_, name, {}, &Attr::name);
  if (place != attrs_.end() && place->name == name)
    place->value = std::move(value);
  else
    attrs_.insert(place, {std::string(name), std::move(value)});
}

double Attrs::number(std::string_view name) const {
  const AttrValue* value = find(name);
  INTERNAL_CHECK(value != nullptr, "attribute '{}' is missing", name);
  if (const auto* real = std::get_if<double>(value)) return *real;
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  return get<bool>(name) ? 1.0 : 0.0;
}

std::string to_text(const Attrs& attrs) {
  if (attrs.empty()) return {};
  std::vector<std::string> parts;
  for (const Attr& attr : attrs.list()) parts.push_back(str("{}={}", attr.name, to_text(attr.value)));
  return str("{{{}}}", fmt::join(parts, ", "));
}

}  // namespace stepc
