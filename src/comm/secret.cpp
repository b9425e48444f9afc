#include "comm/secret.h"

#include <array>

#include <sodium.h>

#include "base/check.h"

namespace stepc {

namespace {

template <size_t kBytes>
std::string hexadecimal(const std::array<unsigned char, kBytes>& bytes) {
  std::string text(2 * kBytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

std::string Secret::sign(std::string_view text) const {
  INTERNAL_CHECK(is_given(), "there is no secret to sign with");
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> made{};
  crypto_auth_hmacsha256_init(&state, bytes_of(text_), text_.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  crypto_auth_hmacsha256_final(&state, made.data());
  return hexadecimal(made);
}

bool Secret::is_signed(std::string_view text, std::string_view signature) const {
  const std::string expected = sign(text);
  return signature.size() == expected.size() && sodium_memcmp(signature.data(), expected.data(), expected.size()) == 0;
}

std::string draw_nonce() {
  INTERNAL_CHECK(sodium_init() >= 0, "no random numbers");
  constexpr size_t kBytes = 16;
  std::array<unsigned char, kBytes> drawn{};
  randombytes_buf(drawn.data(), drawn.size());
  return hexadecimal(drawn);
}

}  // namespace stepc
