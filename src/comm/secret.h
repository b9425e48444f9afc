// Secret: a text that the ranks of a run share, so that they connect to nobody else. It is never sent: each side proves
// to the other that it has it, by HMAC-SHA256 of a new text every time. Plain data.
#pragma once

#include <string>
#include <string_view>

namespace stepc {

class Secret {
 public:
  // No secret: everybody is trusted.
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}

  [[nodiscard]] bool is_given() const { return !text_.empty(); }
  // The signature of the text, 64 hexadecimal digits; it also serves as a name that nobody else can guess.
  [[nodiscard]] std::string sign(std::string_view text) const;
  // Compares in a time that does not depend on the signature.
  [[nodiscard]] bool is_signed(std::string_view text, std::string_view signature) const;
  bool operator==(const Secret&) const = default;

 private:
  std::string text_;
};

// 32 hexadecimal digits, from the system's generator.
std::string draw_nonce();

}  // namespace stepc
