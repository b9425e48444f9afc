#include "data/chat/template_run.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "data/chat/template_text.h"
#include "data/tokenize/normalizer.h"

namespace stepc {

namespace {
using List = TemplateValue::List;
using Map = TemplateValue::Map;

class Run {
 public:
  using Kind = TemplateExpr::Kind;

  Run(Map variables, std::string_view what, const TemplateLimits& limits)
      : scopes_{std::move(variables)}, what_(what), limits_(limits) {}

  void nodes(const std::vector<TemplateNode>& block) {
    for (const TemplateNode& node : block) {
      spend(1);
      switch (node.kind) {
        case TemplateNode::Kind::kText:
          print(node.text);
          break;
        case TemplateNode::Kind::kPrint:
          line_ = node.exprs[0].line;
          print(printed(value(node.exprs[0])));
          break;
        case TemplateNode::Kind::kIf:
          nodes(value(node.exprs[0]).is_true() ? node.body : node.otherwise);
          break;
        case TemplateNode::Kind::kFor:
          loop(node);
          break;
        case TemplateNode::Kind::kSet:
          assign(node);
          break;
        case TemplateNode::Kind::kGeneration:
          generation(node);
          break;
      }
    }
  }

  [[nodiscard]] TemplateOutput& output() { return output_; }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: line {}: {}", what_, line_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void check(bool good, fmt::format_string<Args...> format, Args&&... args) const {
    if (!good) fail(format, std::forward<Args>(args)...);
  }

  void spend(uint64_t steps) {
    steps_ += steps;
    check(steps_ <= limits_.steps, "the template takes more than {} steps", limits_.steps);
  }
  // For every text that is made.
  std::string made(std::string text) {
    check(text.size() <= limits_.text_bytes, "the template makes a text of more than {}",
          human_bytes(limits_.text_bytes));
    spend(text.size() / 64);
    return text;
  }
  void print(std::string_view text) {
    check(text.size() <= limits_.text_bytes - output_.text.size(), "the template prints more than {}",
          human_bytes(limits_.text_bytes));
    output_.text += text;
  }

  [[nodiscard]] TemplateValue* find(std::string_view name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      for (auto& [known, value] : *scope)
        if (known == name) return &value;
    return nullptr;
  }
  static void put(Map& map, const std::string& name, TemplateValue value) {
    for (auto& [known, old] : map)
      if (known == name) {
        old = std::move(value);
        return;
      }
    map.emplace_back(name, std::move(value));
  }

  void assign(const TemplateNode& node) {
    line_ = node.exprs[0].line;
    TemplateValue assigned = value(node.exprs[0]);
    if (node.names.size() == 1) return put(scopes_.back(), node.names[0], std::move(assigned));
    const TemplateValue* space = find(node.names[0]);
    check(space && space->is_namespace(), "{} is no namespace", in_quotes(node.names[0]));
    check(!assigned.is_namespace(), "a namespace inside of a namespace is not supported");
    put(*space->map(), node.names[1], std::move(assigned));
  }

  List items_of(const TemplateValue& values) {
    if (values.list()) return *values.list();
    List items;
    if (const Map* map = values.map()) {
      for (const auto& [key, ignored] : *map) items.emplace_back(key);
    } else if (const std::string* text = values.text()) {
      for (size_t i = 0, count = char_count(*text); i < count; ++i) {
        const auto at = static_cast<int64_t>(i);
        spend(1 + text->size() / 64);
        items.emplace_back(char_slice(*text, at, at + 1));
      }
    } else {
      check(values.is_undefined(), "cannot go through {}", values.type_name());
    }
    return items;
  }

  void bind(const TemplateNode& node, const TemplateValue& item) {
    if (node.names.size() == 1) return put(scopes_.back(), node.names[0], item);
    check(item.list() && item.list()->size() == 2, "a loop over pairs found {}", item.type_name());
    for (size_t i = 0; i < 2; ++i) put(scopes_.back(), node.names[i], (*item.list())[i]);
  }

  void loop(const TemplateNode& node) {
    line_ = node.exprs[0].line;
    List items = items_of(value(node.exprs[0]));
    if (node.exprs.size() == 2) {
      List kept;
      for (const TemplateValue& item : items) {
        scopes_.emplace_back();
        bind(node, item);
        if (value(node.exprs[1]).is_true()) kept.push_back(item);
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty()) nodes(node.otherwise);
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < count; ++i) {
      scopes_.emplace_back();
      bind(node, items[i]);
      put(scopes_.back(), "loop",
          TemplateValue::map({{"index", i + 1},
                              {"index0", i},
                              {"revindex", count - i},
                              {"revindex0", count - i - 1},
                              {"first", i == 0},
                              {"last", i + 1 == count},
                              {"length", count},
                              {"previtem", i > 0 ? items[i - 1] : TemplateValue()},
                              {"nextitem", i + 1 < count ? items[i + 1] : TemplateValue()}}));
      nodes(node.body);
      scopes_.pop_back();
    }
  }

  // transformers runs the body as a macro: what is set there ends with it.
  void generation(const TemplateNode& node) {
    const size_t begin = output_.text.size();
    const bool is_outermost = !std::exchange(is_generating_, true);
    scopes_.emplace_back();
    nodes(node.body);
    scopes_.pop_back();
    if (!is_outermost) return;
    is_generating_ = false;
    if (output_.text.size() > begin) output_.generated.emplace_back(begin, output_.text.size());
  }

  TemplateValue value(const TemplateExpr& expr) {
    spend(1);
    line_ = expr.line;
    switch (expr.kind) {
      case Kind::kLiteral:
        return expr.literal;
      case Kind::kName: {
        const TemplateValue* found = find(expr.text);
        return found ? *found : TemplateValue();
      }
      case Kind::kList:
        return TemplateValue::list(values(expr, 0));
      case Kind::kMap: {
        Map map;
        for (size_t i = 0; i < expr.children.size(); i += 2)
          put(map, text_of(value(expr.children[i]), "a map's key"), value(expr.children[i + 1]));
        return TemplateValue::map(std::move(map));
      }
      case Kind::kMember: {
        const TemplateValue object = value(expr.children[0]);
        check(!object.is_undefined(), "{} of an undefined value", in_quotes(expr.text));
        return object.member(expr.text);
      }
      case Kind::kIndex:
        return element(value(expr.children[0]), value(expr.children[1]));
      case Kind::kSlice:
        return slice(expr);
      case Kind::kCall:
        return call(expr);
      case Kind::kMethod:
      case Kind::kFilter:
        return apply(expr, value(expr.children[0]), values(expr, 1));
      case Kind::kTest:
        return test(expr.text, value(expr.children[0]));
      case Kind::kUnary: {
        const TemplateValue operand = value(expr.children[0]);
        if (expr.text == "not") return !operand.is_true();
        check(operand.integer() && *operand.integer() != INT64_MIN, "minus {}", operand.type_name());
        return -*operand.integer();
      }
      case Kind::kBinary:
        return binary(expr);
      case Kind::kCondition:
        return value(expr.children[value(expr.children[0]).is_true() ? 1 : 2]);
    }
    fail("an expression of no kind");
  }

  List values(const TemplateExpr& expr, size_t from) {
    List list;
    for (size_t i = from; i < expr.children.size(); ++i) list.push_back(value(expr.children[i]));
    return list;
  }

  std::string text_of(const TemplateValue& value, std::string_view role) const {
    check(value.text() != nullptr, "{} must be text, found {}", role, value.type_name());
    return *value.text();
  }
  std::optional<int64_t> bound_of(const TemplateValue& value) const {
    if (value.is_none()) return std::nullopt;
    check(value.integer() != nullptr, "a slice's bound must be a whole number, found {}", value.type_name());
    return *value.integer();
  }

  TemplateValue element(const TemplateValue& object, const TemplateValue& index) const {
    check(!object.is_undefined(), "an element of an undefined value");
    if (index.text()) return object.member(*index.text());
    check(index.integer() && (object.list() || object.text()), "{} at {}", object.type_name(), index.type_name());
    const auto count = static_cast<int64_t>(object.list() ? object.list()->size() : char_count(*object.text()));
    const int64_t at = *index.integer() < 0 ? *index.integer() + count : *index.integer();
    if (at < 0 || at >= count) return {};
    if (object.list()) return (*object.list())[at];
    return char_slice(*object.text(), at, at + 1);
  }

  TemplateValue slice(const TemplateExpr& expr) {
    const TemplateValue object = value(expr.children[0]);
    const auto from = bound_of(value(expr.children[1]));
    const auto to = bound_of(value(expr.children[2]));
    const int64_t step = bound_of(value(expr.children[3])).value_or(1);
    if (const List* list = object.list()) {
      check(step == 1 || (step == -1 && !from && !to), "a slice with step {} is not supported", step);
      if (step == -1) return TemplateValue::list(List(list->rbegin(), list->rend()));
      const auto [begin, end] = slice_bounds(list->size(), from, to);
      spend(end - begin);
      return TemplateValue::list(
          List(list->begin() + static_cast<ptrdiff_t>(begin), list->begin() + static_cast<ptrdiff_t>(end)));
    }
    check(object.text() && step == 1, "a slice of {} is not supported", object.type_name());
    return made(char_slice(*object.text(), from, to));
  }

  TemplateValue call(const TemplateExpr& expr) {
    const List arguments = values(expr, 0);
    if (expr.text == "raise_exception") {
      fail("the template refuses these messages: {}", arguments.empty() ? "" : in_quotes(printed(arguments[0])));
    }
    if (expr.text == "namespace") {
      Map map;
      const size_t unnamed = arguments.size() - expr.names.size();
      check(unnamed == 0, "namespace() takes names only");
      for (size_t i = 0; i < expr.names.size(); ++i) put(map, expr.names[i], arguments[i]);
      return TemplateValue::name_space(std::move(map));
    }
    check(arguments.size() == 1 || arguments.size() == 2, "range() with {} arguments is not supported",
          arguments.size());
    const int64_t from = arguments.size() == 2 ? bound_of(arguments[0]).value_or(0) : 0;
    const int64_t to = bound_of(arguments.back()).value_or(0);
    check(to <= from || static_cast<uint64_t>(to) - static_cast<uint64_t>(from) <= limits_.steps,
          "range() is too long");
    List list;
    for (int64_t i = from; i < to; ++i) {
      spend(1);
      list.emplace_back(i);
    }
    return TemplateValue::list(std::move(list));
  }

  static TemplateValue test(const std::string& name, const TemplateValue& value) {
    const bool number = value.integer() || value.as<double>();
    const bool sequence = value.list() || value.text() || value.map();
    if (name == "defined") return !value.is_undefined();
    if (name == "undefined") return value.is_undefined();
    if (name == "none") return value.is_none();
    if (name == "string") return value.text() != nullptr;
    if (name == "mapping") return value.map() != nullptr;
    if (name == "number") return number || value.as<bool>();
    if (name == "boolean") return value.as<bool>() != nullptr;
    if (name == "true") return value.as<bool>() && *value.as<bool>();
    if (name == "false") return value.as<bool>() && !*value.as<bool>();
    return sequence;  // sequence, iterable
  }

  // A filter or a method, which here mean the same where they share a name.
  TemplateValue apply(const TemplateExpr& expr, const TemplateValue& object, const List& arguments) {
    const std::string& name = expr.text;
    const auto argument = [&](size_t i) { return i < arguments.size() ? arguments[i] : TemplateValue(); };
    if (name == "default" || name == "d") {
      const bool also_false = argument(1).is_true();
      return object.is_undefined() || (also_false && !object.is_true()) ? argument(0) : object;
    }
    if (name == "get") {
      check(object.map() != nullptr, "get() of {}", object.type_name());
      const TemplateValue found = object.member(text_of(argument(0), "a key"));
      return !found.is_undefined() ? found : arguments.size() > 1 ? argument(1) : TemplateValue::none();
    }
    if (name == "length" || name == "count") {
      if (object.list()) return static_cast<int64_t>(object.list()->size());
      if (object.map()) return static_cast<int64_t>(object.map()->size());
      check(object.text() || object.is_undefined(), "the length of {}", object.type_name());
      return object.text() ? static_cast<int64_t>(char_count(*object.text())) : int64_t{0};
    }
    if (name == "items" || name == "keys") {
      check(object.map() != nullptr, "{}() of {}", name, object.type_name());
      List list;
      for (const auto& [key, value] : *object.map())
        list.push_back(name == "keys" ? TemplateValue(key) : TemplateValue::list({TemplateValue(key), value}));
      return TemplateValue::list(std::move(list));
    }
    if (name == "tojson") {
      check(arguments.empty() && expr.names.empty(), "tojson with arguments is not supported");
      return made(json_text(object));
    }
    if (name == "first" || name == "last") return element(object, int64_t{name == "first" ? 0 : -1});
    if (name == "list") return TemplateValue::list(items_of(object));
    if (name == "string") return made(printed(object));
    if (name == "safe") return object;
    if (name == "int") return whole_of(object);
    if (name == "join") {
      std::string result;
      bool first = true;
      for (const TemplateValue& item : items_of(object)) {
        if (!first && argument(0).text()) result += *argument(0).text();
        first = false;
        result += made(printed(item));
        check(result.size() <= limits_.text_bytes, "join makes too long a text");
      }
      return result;
    }
    return text_function(name, object, arguments);
  }

  static TemplateValue whole_of(const TemplateValue& object) {
    if (object.integer()) return object;
    int64_t whole = 0;
    if (object.text()) std::from_chars(object.text()->data(), object.text()->data() + object.text()->size(), whole);
    return whole;
  }

  TemplateValue text_function(const std::string& name, const TemplateValue& object, const List& arguments) {
    const std::string text =
        made(name == "trim" && !object.text() ? printed(object) : text_of(object, str("what {}() is given", name)));
    const std::string first = arguments.empty() ? "" : arguments[0].text() ? *arguments[0].text() : "";
    if (name == "trim" || name == "strip") return std::string(stripped(text, first, true, true));
    if (name == "lstrip") return std::string(stripped(text, first, true, false));
    if (name == "rstrip") return std::string(stripped(text, first, false, true));
    if (name == "upper") return upper_case(text);
    if (name == "lower") return lower_case(text);
    if (name == "capitalize") return capitalized(text, false);
    if (name == "title") return capitalized(text, true);
    if (name == "startswith") return text.starts_with(first);
    if (name == "endswith") return text.ends_with(first);
    if (name == "replace") {
      check(arguments.size() == 2 && !first.empty(), "replace() with these arguments is not supported");
      const std::string with = text_of(arguments[1], "a replacement");
      check(with.size() <= first.size() || text.size() / first.size() * with.size() <= limits_.text_bytes,
            "replace() makes too long a text");
      return made(replaced(text, first, with));
    }
    check(name == "split", "{} is not supported here", in_quotes(name));
    check(arguments.empty() || !first.empty(), "split() by nothing");
    const auto most = arguments.size() > 1 ? bound_of(arguments[1]).value_or(-1) : -1;
    List list;
    spend(text.size() / 8);
    for (auto& part : split_text(text, arguments.empty() ? std::nullopt : std::optional<std::string_view>(first), most))
      list.emplace_back(std::move(part));
    return TemplateValue::list(std::move(list));
  }

  TemplateValue binary(const TemplateExpr& expr) {
    const std::string& sign = expr.text;
    const TemplateValue left = value(expr.children[0]);
    if (sign == "and") return left.is_true() ? value(expr.children[1]) : left;
    if (sign == "or") return left.is_true() ? left : value(expr.children[1]);
    const TemplateValue right = value(expr.children[1]);
    if (sign == "==") return equal(left, right);
    if (sign == "!=") return !equal(left, right);
    if (sign == "in") return contains(right, left);
    if (sign == "not in") return !contains(right, left);
    if (sign == "~") return made(printed(left) + printed(right));
    if (sign == "+" && left.text() && right.text()) return made(*left.text() + *right.text());
    if (sign == "+" && left.list() && right.list()) {
      spend(4 * (left.list()->size() + right.list()->size()));
      List list = *left.list();
      list.insert(list.end(), right.list()->begin(), right.list()->end());
      return TemplateValue::list(std::move(list));
    }
    if (left.text() && right.text() && sign.find_first_of("<>") == 0)
      return compare(sign, left.text()->compare(*right.text()));
    check(left.integer() && right.integer(), "{} {} {}", left.type_name(), sign, right.type_name());
    return arithmetic(sign, *left.integer(), *right.integer());
  }

  static TemplateValue compare(const std::string& sign, int64_t order) {
    if (sign == "<") return order < 0;
    if (sign == "<=") return order <= 0;
    if (sign == ">") return order > 0;
    return order >= 0;
  }

  TemplateValue arithmetic(const std::string& sign, int64_t a, int64_t b) const {
    if (sign.find_first_of("<>") == 0) return compare(sign, a < b ? -1 : a > b ? 1 : 0);
    int64_t result = 0;
    bool overflow = false;
    if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
    if (sign == "//" || sign == "%") {
      check(b != 0, "division by zero");
      overflow = a == INT64_MIN && b == -1;
      if (!overflow) {
        const int64_t rest = (a % b + b) % b;  // Python's sign
        result = sign == "%" ? rest : (a - rest) / b;
      }
    }
    check(!overflow, "{} {} {} is too large", a, sign, b);
    return result;
  }

  bool contains(const TemplateValue& container, const TemplateValue& item) {
    if (const List* list = container.list()) {
      spend(list->size());
      return std::any_of(list->begin(), list->end(), [&](const auto& one) { return equal(one, item); });
    }
    if (container.map()) return item.text() && !container.member(*item.text()).is_undefined();
    check(container.text() && item.text(), "{} in {}", item.type_name(), container.type_name());
    spend(container.text()->size() / 64);
    return container.text()->find(*item.text()) != std::string::npos;
  }

  std::vector<Map> scopes_;
  std::string_view what_;
  TemplateLimits limits_;
  TemplateOutput output_;
  bool is_generating_ = false;
  uint64_t steps_ = 0;
  int line_ = 1;
};
}  // namespace

TemplateOutput run_template(const std::vector<TemplateNode>& nodes,
                            const std::vector<std::pair<std::string, TemplateValue>>& variables, std::string_view what,
                            const TemplateLimits& limits) {
  Run run(variables, what, limits);
  run.nodes(nodes);
  return std::move(run.output());
}

}  // namespace stepc
