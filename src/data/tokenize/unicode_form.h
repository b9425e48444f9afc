// Unicode's normalization forms, by utf8proc. Bytes that are not UTF-8 stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace stepc {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

std::string normalized(std::string_view text, UnicodeForm form);

}  // namespace stepc
