// How the text forms spell what a Trace, a Graph and a Schedule have in common: ATen arguments, attributes, types and
// where something comes from. Internal to text forms.
#pragma once

#include <functional>
#include <string>

#include "ir/graph.h"
#include "ir/text/text_cursor.h"

namespace stepc {

// `name` spells a value that is there; one that is not is "undefined".
std::string arg_text(const Arg& arg, const std::function<std::string(ValueId)>& name);
// `value` takes a value, whose name begins with `sigil`.
Arg parse_arg(TextCursor& in, char sigil, const std::function<ValueId()>& value);

// What stands behind an opaque call's arguments and results: " writes 0 draws layout 0(1, 4) workspace 64 0", and
// its rule.
std::string effects_text(const AtenCall& call);
void parse_effects(TextCursor& in, AtenCall& call);

Attrs parse_attrs(TextCursor& in);  // none where no '{' stands
DType parse_dtype(TextCursor& in);
TensorType parse_tensor_type(TextCursor& in);  // whose bytes can be counted
InputKind parse_input_kind(TextCursor& in);
Phase parse_phase(TextCursor& in);

std::string source_text(const Source& source);  // | forward "proj"
Source parse_source(TextCursor& in);

}  // namespace stepc
