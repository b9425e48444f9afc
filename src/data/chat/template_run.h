// Runs a parsed chat template. It can read its variables and make text, and nothing else; steps and bytes are bounded,
// so it ends soon whatever it says. Every failure is a UserError.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/template_syntax.h"

namespace stepc {

struct TemplateLimits {
  uint64_t steps = 2'000'000;           // one for each node evaluated and for each 64 bytes of text made
  size_t text_bytes = size_t{8} << 20;  // of one text
};

struct TemplateOutput {
  std::string text;
  // The byte ranges that {% generation %} encloses, in order; of nested ones the outermost.
  std::vector<std::pair<size_t, size_t>> generated;
};

TemplateOutput run_template(const std::vector<TemplateNode>& nodes,
                            const std::vector<std::pair<std::string, TemplateValue>>& variables, std::string_view what,
                            const TemplateLimits& limits = {});

}  // namespace stepc
