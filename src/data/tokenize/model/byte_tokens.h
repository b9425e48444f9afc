// The tokens <0x00> to <0xFF> of vocabularies that fall back to bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace stepc {

class ByteTokens {
 public:
  ByteTokens() { ids_.fill(-1); }
  // `find` gives the id of a token, or nothing.
  explicit ByteTokens(const std::function<std::optional<int32_t>(std::string_view)>& find);

  // Appends the tokens of these bytes; false, and nothing appended, if one has none.
  bool append(std::string_view bytes, std::vector<int32_t>& ids) const;

 private:
  std::array<int32_t, 256> ids_ = {};
};

}  // namespace stepc
