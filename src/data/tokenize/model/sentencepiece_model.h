// tokenizer.model through the sentencepiece library: the ids that its own programs give.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

class SentencePieceModel {
 public:
  // The file's bytes; `what` names it in errors.
  SentencePieceModel(std::string_view bytes, std::string_view what);
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  // Ids out of range are passed over.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const;
  [[nodiscard]] int32_t vocab_size() const;
  // A control or user-defined piece, such as </s>.
  [[nodiscard]] std::optional<int32_t> added_token(std::string_view content) const;
  [[nodiscard]] std::string_view spelling(int32_t id) const;

 private:
  struct Library;
  std::unique_ptr<const Library> library_;
};

}  // namespace stepc
