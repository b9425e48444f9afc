// One text field of a JSON object, without building the rest of it: a line costs no more memory than its text.
#pragma once

#include <string>
#include <string_view>

namespace stepc {

// The object's member `field`, which must be there, once, and be text; `what` names the object in errors.
std::string json_text_field(std::string_view json, std::string_view field, std::string_view what);

}  // namespace stepc
