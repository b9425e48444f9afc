#include "ir/call_rule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/text.h"
#include "ir/text/text_cursor.h"

namespace stepc {

namespace {

constexpr std::array<std::string_view, 3> kCombines = {"sum", "max", "min"};
constexpr std::string_view kForm = R"(dimensions are named as in "m k, k n -> m n; k: sum")";

// The words of a text, at blanks.
DimNames::Names words(std::string_view text) {
  DimNames::Names out;
  for (std::string& word : split(text, ' '))
    if (!word.empty()) out.push_back(std::move(word));
  return out;
}

void check_name(const std::string& name) {
  const bool is_name = std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  USER_CHECK(is_name, "'{}' is no name of a dimension; {}", name, kForm);
}

std::vector<DimNames::Names> tensors(std::string_view text) {
  std::vector<DimNames::Names> out;
  for (const std::string& one : split(text, ',')) {
    const DimNames::Names& names = out.emplace_back(words(one));
    std::set<std::string> seen;
    for (const std::string& name : names) {
      check_name(name);
      USER_CHECK(name == "_" || seen.insert(name).second, "'{}' names two dimensions of one tensor; {}", name, kForm);
    }
  }
  return out;
}

bool stands_on(const DimNames::Names& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

void check(const DimNames& dims) {
  const auto on_operand = [&](const std::string& name) {
    return std::ranges::any_of(dims.operands, [&](const auto& names) { return stands_on(names, name); });
  };
  const auto is_combined = [&](const std::string& name) {
    return std::ranges::find(dims.combined, name, &std::pair<std::string, DimNames::Combine>::first) !=
           dims.combined.end();
  };
  const auto on_every_result = [&](const std::string& name) {
    return std::ranges::all_of(dims.results, [&](const auto& names) { return stands_on(names, name); });
  };
  std::set<std::string> seen;
  for (const auto& [name, combine] : dims.combined) {
    USER_CHECK(seen.insert(name).second, "'{}' is combined in two ways", name);
    USER_CHECK(on_operand(name), "'{}' is combined and names no dimension of an operand", name);
    USER_CHECK(!on_every_result(name), "'{}' is combined, but every result has it: there is nothing to combine", name);
  }
  for (const DimNames::Names& names : dims.results)
    for (const std::string& name : names)
      USER_CHECK(name == "_" || on_operand(name), "'{}' names a result's dimension and no operand's; write '_'", name);
  for (const DimNames::Names& names : dims.operands)
    for (const std::string& name : names)
      USER_CHECK(name == "_" || is_combined(name) || on_every_result(name),
                 "'{}' is missing on a result: say how its parts are combined, \"; {}: sum\" (max, min), or write '_'",
                 name, name);
}

}  // namespace

std::string to_text(const DimNames& dims) {
  const auto side = [](const std::vector<DimNames::Names>& tensors) {
    std::vector<std::string> parts;
    for (const DimNames::Names& names : tensors) parts.push_back(str("{}", fmt::join(names, " ")));
    return str("{}", fmt::join(parts, ", "));
  };
  std::string out = str("{} -> {}", side(dims.operands), side(dims.results));
  for (size_t c = 0; c < dims.combined.size(); ++c)
    out += str("{} {}: {}", c == 0 ? ";" : ",", dims.combined[c].first,
               kCombines[static_cast<size_t>(dims.combined[c].second)]);
  return out;
}

DimNames parse_dim_names(std::string_view text) {
  const size_t semicolon = text.find(';');
  const std::string_view tensors_text = text.substr(0, semicolon);
  const size_t arrow = tensors_text.find("->");
  USER_CHECK(arrow != std::string_view::npos, "'{}' has no '->'; {}", text, kForm);
  DimNames dims;
  dims.operands = tensors(tensors_text.substr(0, arrow));
  dims.results = tensors(tensors_text.substr(arrow + 2));
  if (semicolon != std::string_view::npos) {
    for (const std::string& one : split(text.substr(semicolon + 1), ',')) {
      const size_t colon = one.find(':');
      const DimNames::Names name = words(std::string_view(one).substr(0, colon));
      const DimNames::Names how =
          colon == std::string_view::npos ? DimNames::Names() : words(std::string_view(one).substr(colon + 1));
      const bool has_form = name.size() == 1 && how.size() == 1;
      const auto found = has_form ? std::ranges::find(kCombines, how[0]) : kCombines.end();
      USER_CHECK(found != kCombines.end(), "'{}' is no way to combine parts; it is \"k: sum\", max or min", one);
      check_name(name[0]);
      dims.combined.emplace_back(name[0], static_cast<DimNames::Combine>(found - kCombines.begin()));
    }
  }
  check(dims);
  return dims;
}

std::string to_text(const CallRule& rule) {
  std::string out = str("rule flops {}", constant_text(rule.flops));
  if (rule.bytes) out += str(" bytes {}", constant_text(*rule.bytes));
  if (rule.dims) out += str(" dims {}", quoted(to_text(*rule.dims)));
  return out;
}

CallRule parse_call_rule(TextCursor& in) {
  const auto amount = [&] {
    const double value = in.real();
    if (!std::isfinite(value) || value < 0) in.fail("an amount of work is 0 or more");
    return value;
  };
  CallRule rule;
  in.expect("flops ");
  rule.flops = amount();
  if (in.accept("bytes ")) rule.bytes = amount();
  if (in.accept("dims ")) {
    const std::string text = in.quoted_text();
    try {
      rule.dims = parse_dim_names(text);
    } catch (const UserError& error) {
      in.fail(error.what());
    }
  }
  return rule;
}

}  // namespace stepc
