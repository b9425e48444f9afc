#include "data/chat/template_syntax.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"
#include "base/json.h"
#include "data/chat/template_tokens.h"

namespace stepc {

namespace {
constexpr int kMaxDepth = 40;

constexpr std::array<std::string_view, 19> kFilters = {
    "trim", "length",  "count",  "upper", "lower", "capitalize", "default", "d",    "first", "last",
    "join", "replace", "string", "int",   "list",  "tojson",     "items",   "safe", "title"};
constexpr std::array<std::string_view, 11> kTests = {
    "defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "boolean", "true", "false"};
constexpr std::array<std::string_view, 3> kFunctions = {"raise_exception", "namespace", "range"};
constexpr std::array<std::string_view, 14> kMethods = {"strip",      "lstrip", "rstrip", "startswith", "endswith",
                                                       "split",      "upper",  "lower",  "replace",    "title",
                                                       "capitalize", "items",  "keys",   "get"};

template <size_t kCount>
bool is_one_of(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// One expression of a tag.
class ExprParser {
 public:
  using Kind = TemplateExpr::Kind;

  ExprParser(std::string_view text, int line, std::string_view what)
      : tokens_(cut_tokens(text, line, what)), line_(line), what_(what) {}

  [[nodiscard]] bool at_end() const { return token().kind == TemplateToken::Kind::kEnd; }
  void want_end() { USER_CHECK(at_end(), "{}: line {}: cannot read {}", what_, line_, in_quotes(token().text)); }

  bool accept_name(std::string_view name) { return accept(TemplateToken::Kind::kName, name); }
  bool accept_sign(std::string_view sign) { return accept(TemplateToken::Kind::kSign, sign); }
  void want_sign(std::string_view sign) {
    USER_CHECK(accept_sign(sign), "{}: line {}: expected \"{}\", found {}", what_, line_, sign,
               in_quotes(token().text));
  }
  std::string want_name() {
    USER_CHECK(token().kind == TemplateToken::Kind::kName, "{}: line {}: expected a name, found {}", what_, line_,
               in_quotes(token().text));
    return tokens_[at_++].text;
  }

  TemplateExpr expression() {
    const Depth depth(*this);
    TemplateExpr value = either();
    if (!accept_name("if")) return value;
    TemplateExpr result = make(Kind::kCondition, "");
    result.children = {either(), std::move(value)};
    result.children.push_back(accept_name("else") ? expression() : make(Kind::kLiteral, ""));
    return result;
  }

  // Without an inline "if", which in a loop's head is its condition.
  TemplateExpr either() {
    TemplateExpr left = both();
    while (accept_name("or")) left = binary("or", std::move(left), both());
    return left;
  }

 private:
  // Bounds the recursion.
  struct Depth {
    ExprParser& parser;
    explicit Depth(ExprParser& which) : parser(which) {
      USER_CHECK(++parser.depth_ <= kMaxDepth, "{}: line {}: nested more than {} deep", parser.what_, parser.line_,
                 kMaxDepth);
    }
    ~Depth() { --parser.depth_; }
  };

  [[nodiscard]] const TemplateToken& token() const { return tokens_[at_]; }
  bool accept(TemplateToken::Kind kind, std::string_view text) {
    if (token().kind != kind || token().text != text) return false;
    ++at_;
    return true;
  }

  TemplateExpr make(Kind kind, std::string text) const {
    TemplateExpr expr;
    expr.kind = kind;
    expr.text = std::move(text);
    expr.line = line_;
    return expr;
  }
  TemplateExpr literal(TemplateValue value) const {
    TemplateExpr expr = make(Kind::kLiteral, "");
    expr.literal = std::move(value);
    return expr;
  }
  TemplateExpr binary(std::string sign, TemplateExpr left, TemplateExpr right) const {
    TemplateExpr expr = make(Kind::kBinary, std::move(sign));
    expr.children.push_back(std::move(left));
    expr.children.push_back(std::move(right));
    return expr;
  }

  TemplateExpr both() {
    TemplateExpr left = negation();
    while (accept_name("and")) left = binary("and", std::move(left), negation());
    return left;
  }

  TemplateExpr negation() {
    const Depth depth(*this);
    if (!accept_name("not")) return comparison();
    TemplateExpr expr = make(Kind::kUnary, "not");
    expr.children.push_back(negation());
    return expr;
  }

  std::string comparison_sign() {
    for (const auto sign : {"==", "!=", "<=", ">=", "<", ">"})
      if (accept_sign(sign)) return sign;
    if (accept_name("in")) return "in";
    if (token().text == "not" && tokens_[at_ + 1].text == "in") {
      at_ += 2;
      return "not in";
    }
    return {};
  }

  TemplateExpr comparison() {
    TemplateExpr left = sum();
    const std::string sign = comparison_sign();
    if (sign.empty()) return left;
    left = binary(sign, std::move(left), sum());
    USER_CHECK(comparison_sign().empty(), "{}: line {}: a chain of comparisons is not supported", what_, line_);
    return left;
  }

  TemplateExpr sum() {
    TemplateExpr left = concatenation();
    while (true) {
      const std::string sign = token().text;
      if (!accept_sign("+") && !accept_sign("-")) return left;
      left = binary(sign, std::move(left), concatenation());
    }
  }

  TemplateExpr concatenation() {
    TemplateExpr left = product();
    while (accept_sign("~")) left = binary("~", std::move(left), product());
    return left;
  }

  TemplateExpr product() {
    TemplateExpr left = unary();
    while (true) {
      const std::string sign = token().text;
      if (!accept_sign("*") && !accept_sign("//") && !accept_sign("%")) return left;
      left = binary(sign, std::move(left), unary());
    }
  }

  TemplateExpr unary() {
    const Depth depth(*this);
    if (!accept_sign("-")) return filtered(postfix(primary()));
    TemplateExpr expr = make(Kind::kUnary, "-");
    expr.children.push_back(unary());
    return expr;
  }

  TemplateExpr primary() {
    const TemplateToken next = token();
    if (next.kind == TemplateToken::Kind::kText) {
      ++at_;
      return literal(next.text);
    }
    if (next.kind == TemplateToken::Kind::kNumber) {
      ++at_;
      int64_t whole = 0;
      const char* end = next.text.data() + next.text.size();
      if (std::from_chars(next.text.data(), end, whole).ptr == end) return literal(whole);
      double real = 0;
      const auto read = std::from_chars(next.text.data(), end, real);
      USER_CHECK(read.ptr == end, "{}: line {}: {} is no number", what_, line_, in_quotes(next.text));
      return literal(real);
    }
    if (accept_sign("(")) {
      TemplateExpr inner = expression();
      USER_CHECK(token().text != ",", "{}: line {}: a tuple is not supported", what_, line_);
      want_sign(")");
      return inner;
    }
    if (accept_sign("[")) {
      TemplateExpr expr = make(Kind::kList, "");
      while (!accept_sign("]")) {
        expr.children.push_back(expression());
        if (!accept_sign(",") && token().text != "]") want_sign("]");
      }
      return expr;
    }
    if (accept_sign("{")) {
      TemplateExpr expr = make(Kind::kMap, "");
      while (!accept_sign("}")) {
        expr.children.push_back(expression());
        want_sign(":");
        expr.children.push_back(expression());
        if (!accept_sign(",") && token().text != "}") want_sign("}");
      }
      return expr;
    }
    const std::string name = want_name();
    if (name == "true" || name == "True") return literal(true);
    if (name == "false" || name == "False") return literal(false);
    if (name == "none" || name == "None") return literal(TemplateValue::none());
    if (!accept_sign("(")) return make(Kind::kName, name);
    USER_CHECK(is_one_of(kFunctions, name), "{}: line {}: function {} is not supported", what_, line_, in_quotes(name));
    TemplateExpr call = make(Kind::kCall, name);
    arguments(call);
    return call;
  }

  // Behind the opening parenthesis.
  void arguments(TemplateExpr& call) {
    while (!accept_sign(")")) {
      const bool named = token().kind == TemplateToken::Kind::kName && tokens_[at_ + 1].text == "=";
      if (named) {
        call.names.push_back(want_name());
        want_sign("=");
      }
      USER_CHECK(named || call.names.empty(), "{}: line {}: an argument without a name after one with", what_, line_);
      call.children.push_back(expression());
      if (!accept_sign(",") && token().text != ")") want_sign(")");
    }
  }

  TemplateExpr subscript(TemplateExpr value) {
    const auto part = [&] {
      const bool none = token().text == ":" || token().text == "]";
      return none ? literal(TemplateValue::none()) : expression();
    };
    TemplateExpr first = part();
    TemplateExpr expr = make(Kind::kIndex, "");
    expr.children = {std::move(value), std::move(first)};
    if (accept_sign(":")) {
      expr.kind = Kind::kSlice;
      expr.children.push_back(part());
      expr.children.push_back(accept_sign(":") ? part() : literal(TemplateValue::none()));
    }
    want_sign("]");
    return expr;
  }

  TemplateExpr postfix(TemplateExpr value) {
    while (true) {
      if (accept_sign("[")) {
        value = subscript(std::move(value));
      } else if (accept_sign(".")) {
        TemplateExpr expr = make(Kind::kMember, want_name());
        expr.children.push_back(std::move(value));
        if (accept_sign("(")) {
          USER_CHECK(is_one_of(kMethods, expr.text), "{}: line {}: method {} is not supported", what_, line_,
                     in_quotes(expr.text));
          expr.kind = Kind::kMethod;
          arguments(expr);
        }
        value = std::move(expr);
      } else {
        USER_CHECK(token().text != "(" || token().kind != TemplateToken::Kind::kSign,
                   "{}: line {}: this call is not supported", what_, line_);
        return value;
      }
    }
  }

  TemplateExpr filtered(TemplateExpr value) {
    while (true) {
      if (accept_sign("|")) {
        TemplateExpr expr = make(Kind::kFilter, want_name());
        USER_CHECK(is_one_of(kFilters, expr.text), "{}: line {}: filter {} is not supported", what_, line_,
                   in_quotes(expr.text));
        expr.children.push_back(std::move(value));
        if (accept_sign("(")) arguments(expr);
        value = postfix(std::move(expr));
      } else if (accept_name("is")) {
        const bool negated = accept_name("not");
        TemplateExpr expr = make(Kind::kTest, want_name());
        USER_CHECK(is_one_of(kTests, expr.text), "{}: line {}: test {} is not supported", what_, line_,
                   in_quotes(expr.text));
        expr.children.push_back(std::move(value));
        value = std::move(expr);
        if (!negated) continue;
        TemplateExpr opposite = make(Kind::kUnary, "not");
        opposite.children.push_back(std::move(value));
        value = std::move(opposite);
      } else {
        return value;
      }
    }
  }

  std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int line_;
  std::string_view what_;
  int depth_ = 0;
};

class TemplateParser {
 public:
  TemplateParser(std::string_view text, std::string_view what) : tags_(cut_tags(text, what)), what_(what) {}

  std::vector<TemplateNode> parse() {
    std::vector<TemplateNode> nodes = block(0);
    USER_CHECK(at_ == tags_.size(), "{}: line {}: {} without its beginning", what_, tags_[at_].line, in_quotes(word_));
    return nodes;
  }

 private:
  using Kind = TemplateNode::Kind;

  // The nodes up to a statement that none of them begins with; its first word is then word_, the rest in rest_.
  std::vector<TemplateNode> block(int depth) {
    std::vector<TemplateNode> nodes;
    for (; at_ < tags_.size(); ++at_) {
      const TemplateTag& tag = tags_[at_];
      USER_CHECK(depth <= kMaxDepth, "{}: line {}: nested more than {} deep", what_, tag.line, kMaxDepth);
      if (tag.kind == TemplateTag::Kind::kText) {
        nodes.emplace_back().text = tag.text;
      } else if (tag.kind == TemplateTag::Kind::kPrint) {
        nodes.emplace_back().kind = Kind::kPrint;
        nodes.back().exprs.push_back(whole_expression(tag.text));
      } else if (!statement(nodes, depth)) {
        break;
      }
    }
    return nodes;
  }

  TemplateExpr whole_expression(std::string_view text) {
    ExprParser parser(text, tags_[at_].line, what_);
    TemplateExpr expr = parser.expression();
    parser.want_end();
    return expr;
  }

  void read_word() {
    const std::string_view text = trim(tags_[at_].text);
    const size_t end = std::min(text.find_first_of(" \t\r\n(-"), text.size());
    word_ = text.substr(0, end);
    rest_ = text.substr(end);
  }

  // False, and nothing consumed, if the statement ends the block.
  bool statement(std::vector<TemplateNode>& nodes, int depth) {
    read_word();
    const int line = tags_[at_].line;
    if (word_ == "if") {
      nodes.push_back(condition(depth));
    } else if (word_ == "for") {
      nodes.push_back(loop(depth));
    } else if (word_ == "set") {
      nodes.push_back(assignment());
    } else if (word_ == "generation") {
      nodes.push_back(generation(depth));
    } else if (word_ == "elif" || word_ == "else" || word_ == "endif" || word_ == "endfor" ||
               word_ == "endgeneration") {
      return false;
    } else {
      user_error("{}: line {}: statement {} is not supported", what_, line, in_quotes(word_));
    }
    return true;
  }

  // A block that must be followed by a statement.
  std::vector<TemplateNode> inner_block(int depth, int line, std::string_view opener) {
    ++at_;
    std::vector<TemplateNode> nodes = block(depth + 1);
    USER_CHECK(at_ < tags_.size(), "{}: line {}: {} without its end", what_, line, in_quotes(opener));
    return nodes;
  }

  TemplateNode condition(int depth) {
    const int line = tags_[at_].line;
    TemplateNode node;
    node.kind = Kind::kIf;
    node.exprs.push_back(whole_expression(rest_));
    node.body = inner_block(depth, line, "if");
    if (word_ == "elif") {
      node.otherwise.push_back(condition(depth + 1));
      return node;
    }
    if (word_ == "else") node.otherwise = inner_block(depth, line, "if");
    USER_CHECK(word_ == "endif", "{}: line {}: expected \"endif\", found {}", what_, tags_[at_].line, in_quotes(word_));
    return node;
  }

  TemplateNode loop(int depth) {
    const int line = tags_[at_].line;
    TemplateNode node;
    node.kind = Kind::kFor;
    ExprParser parser(rest_, line, what_);
    do {
      node.names.push_back(parser.want_name());
    } while (parser.accept_sign(","));
    USER_CHECK(parser.accept_name("in") && node.names.size() <= 2, "{}: line {}: cannot read this loop", what_, line);
    node.exprs.push_back(parser.either());
    if (parser.accept_name("if")) node.exprs.push_back(parser.either());
    parser.want_end();
    node.body = inner_block(depth, line, "for");
    if (word_ == "else") node.otherwise = inner_block(depth, line, "for");
    USER_CHECK(word_ == "endfor", "{}: line {}: expected \"endfor\", found {}", what_, tags_[at_].line,
               in_quotes(word_));
    return node;
  }

  TemplateNode generation(int depth) {
    const int line = tags_[at_].line;
    TemplateNode node;
    node.kind = Kind::kGeneration;
    node.body = inner_block(depth, line, "generation");
    USER_CHECK(word_ == "endgeneration", "{}: line {}: expected \"endgeneration\", found {}", what_, tags_[at_].line,
               in_quotes(word_));
    return node;
  }

  TemplateNode assignment() {
    TemplateNode node;
    node.kind = Kind::kSet;
    ExprParser parser(rest_, tags_[at_].line, what_);
    node.names.push_back(parser.want_name());
    if (parser.accept_sign(".")) node.names.push_back(parser.want_name());
    USER_CHECK(!parser.at_end(), "{}: line {}: a \"set\" block is not supported", what_, tags_[at_].line);
    parser.want_sign("=");
    node.exprs.push_back(parser.expression());
    parser.want_end();
    return node;
  }

  std::vector<TemplateTag> tags_;
  std::string_view what_;
  size_t at_ = 0;
  std::string word_, rest_;  // of the last statement
};
}  // namespace

std::vector<TemplateNode> parse_template(std::string_view text, std::string_view what) {
  return TemplateParser(text, what).parse();
}

}  // namespace stepc
