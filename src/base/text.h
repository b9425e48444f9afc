// Text: formatting, joining, sizes for people, and the nearest known word for error messages. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace stepc {

// fmt::format under a short name; std::format is missing in libstdc++ 12.
template <class... Args>
std::string str(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

// "1.5 GiB", "12.0 MiB", "512 B".
std::string human_bytes(uint64_t bytes);
// "12GiB", "1.5 MiB", "4096 B" -> bytes; nullopt for anything else and for what does not fit.
std::optional<uint64_t> parse_bytes(std::string_view text);
// "1m05s", "2h03m", "12s".
std::string human_seconds(double seconds);
// "10.2 M", "134 M", "512".
std::string human_count(double count);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

// The candidate with the smallest edit distance to `word`, if it is near enough (at most a third of its length, at
// least 2) to be what a person meant.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

// Up to the first end of a line.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace stepc
