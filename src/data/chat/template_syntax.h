// A chat template as a tree: the part of Jinja that chat templates use, and no more. What is outside of it (macros,
// imports, unknown filters, ...) is a UserError that names it and its line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/template_value.h"

namespace stepc {

struct TemplateExpr {
  enum class Kind {
    kLiteral,    // literal
    kName,       // text
    kList,       // children
    kMap,        // children: key, value, key, value ...
    kMember,     // children[0].text
    kIndex,      // children[0][children[1]]
    kSlice,      // children[0][children[1] : children[2] : children[3]], literals of none where left out
    kCall,       // text(children), keyword arguments in names
    kMethod,     // children[0].text(children from 1 on)
    kFilter,     // children[0] | text(children from 1 on)
    kTest,       // children[0] is text
    kUnary,      // text: "not", "-"
    kBinary,     // text: "and", "or", "==", "in", "+", "~", ...
    kCondition,  // children[1] if children[0] else children[2]
  };
  Kind kind = Kind::kLiteral;
  std::string text;
  TemplateValue literal;
  std::vector<TemplateExpr> children;
  std::vector<std::string> names;  // of the last children, if they are keyword arguments
  int line = 1;
};

struct TemplateNode {
  enum class Kind {
    kText,        // text
    kPrint,       // {{ expr }}
    kIf,          // {% if expr %} body {% else %} otherwise
    kFor,         // {% for names in expr if condition %} body {% else %} otherwise
    kSet,         // {% set names = expr %}; two names: an attribute of a namespace
    kGeneration,  // {% generation %} body: what the assistant says
  };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<std::string> names;
  std::vector<TemplateExpr> exprs;  // the expression, and the condition of a loop
  std::vector<TemplateNode> body, otherwise;
};

// With trim_blocks and lstrip_blocks, as transformers compiles templates. `what` names the template in errors.
std::vector<TemplateNode> parse_template(std::string_view text, std::string_view what);

}  // namespace stepc
