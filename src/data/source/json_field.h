// Lines of JSON: one text field of an object, without building the rest of it, so that a line costs no more memory than
// its text; or the whole object. Numbers that no double holds are valid JSON, and only the field's own value matters:
// they are no error.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace stepc {

// The object's member `field`, which must be there, once, and be text; `what` names the object in errors.
std::string json_text_field(std::string_view json, std::string_view field, std::string_view what);

// parse_json(); a number that no double holds reads as 0.
Json parse_json_line(std::string_view json, std::string_view what);

}  // namespace stepc
