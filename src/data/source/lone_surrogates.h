// Halves of surrogate pairs in JSON text: "\ud83d" without its other half, which Python's json writes and reads, though
// it is no character and no tokenizer takes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepc {

// The text with \ufffd (the replacement character) for each half that stands alone; nothing if none does.
std::optional<std::string> without_lone_surrogates(std::string_view json);

}  // namespace stepc
