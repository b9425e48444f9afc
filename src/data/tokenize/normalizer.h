// What is done to text before it is cut into words: a list of steps, in order.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenize/precompiled_map.h"
#include "data/tokenize/unicode_form.h"

namespace stepc {

// Puts `text` before what is not empty.
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::string what, with;
};
// Every run of two or more spaces becomes `with`.
struct SquashSpacesStep {
  std::string with;
};
// Takes white space off the ends.
struct StripStep {
  bool left = true, right = true;
};
using PrecompiledStep = std::shared_ptr<const PrecompiledMap>;
using NormalizerStep =
    std::variant<UnicodeForm, PrependStep, ReplaceStep, SquashSpacesStep, StripStep, PrecompiledStep>;

std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps);

// Every occurrence of `what` in `text`, from the left, as `with`; `what` is not empty.
std::string replaced(std::string_view text, std::string_view what, std::string_view with);

}  // namespace stepc
