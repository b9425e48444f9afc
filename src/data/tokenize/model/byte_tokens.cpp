#include "data/tokenize/model/byte_tokens.h"

#include <algorithm>

#include "base/text.h"

namespace stepc {

ByteTokens::ByteTokens(const std::function<std::optional<int32_t>(std::string_view)>& find) {
  for (size_t byte = 0; byte < ids_.size(); ++byte) ids_[byte] = find(str("<0x{:02X}>", byte)).value_or(-1);
}

bool ByteTokens::append(std::string_view bytes, std::vector<int32_t>& ids) const {
  const auto has_token = [&](char byte) { return ids_[static_cast<uint8_t>(byte)] >= 0; };
  if (!std::all_of(bytes.begin(), bytes.end(), has_token)) return false;
  for (const char byte : bytes) ids.push_back(ids_[static_cast<uint8_t>(byte)]);
  return true;
}

}  // namespace stepc
