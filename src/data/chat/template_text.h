// Python's text functions, as chat templates call them: by characters, not bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

// `chars` empty: white space.
std::string_view stripped(std::string_view text, std::string_view chars, bool left, bool right);
// ASCII letters only; others stay as they are.
std::string upper_case(std::string text);
std::string lower_case(std::string text);
// The first letter large, the others small; `each_word`: of every word.
std::string capitalized(std::string text, bool each_word);
size_t char_count(std::string_view text);
// text[from:to] with Python's meaning of negative and missing bounds.
std::string char_slice(std::string_view text, std::optional<int64_t> from, std::optional<int64_t> to);
// By a separator that is not empty, at most so often; by white space if it is missing.
std::vector<std::string> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t most);

// [from, to) within count, as Python's slices.
std::pair<size_t, size_t> slice_bounds(size_t count, std::optional<int64_t> from, std::optional<int64_t> to);

}  // namespace stepc
