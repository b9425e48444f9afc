#include "data/tokenize/model/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include "base/check.h"
#include "base/json.h"

namespace stepc {

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
  [[nodiscard]] bool has(int32_t id) const { return id >= 0 && id < processor.GetPieceSize(); }
};

SentencePieceModel::SentencePieceModel(std::string_view bytes, std::string_view what) {
  auto library = std::make_unique<Library>();
  const auto status = library->processor.LoadFromSerializedProto({bytes.data(), bytes.size()});
  USER_CHECK(status.ok() && library->processor.GetPieceSize() > 0, "{}: no SentencePiece model: {}", what,
             in_quotes(status.message()));
  library_ = std::move(library);
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int> found;
  const auto status = library_->processor.Encode({text.data(), text.size()}, &found);
  USER_CHECK(status.ok(), "sentencepiece cannot encode a text of {} bytes: {}", text.size(), status.message());
  ids.insert(ids.end(), found.begin(), found.end());
}

std::string SentencePieceModel::decode(std::span<const int32_t> ids) const {
  std::vector<int> known;
  for (const int32_t id : ids)
    if (library_->has(id)) known.push_back(id);
  std::string text;
  const auto status = library_->processor.Decode(known, &text);
  USER_CHECK(status.ok(), "sentencepiece cannot decode {} tokens: {}", ids.size(), status.message());
  return text;
}

int32_t SentencePieceModel::vocab_size() const { return library_->processor.GetPieceSize(); }

std::optional<int32_t> SentencePieceModel::added_token(std::string_view content) const {
  for (int32_t id = 0; id < vocab_size(); ++id)
    if (library_->processor.IdToPiece(id) == content) {
      const bool known_word = !library_->processor.IsControl(id) && !library_->processor.IsUnknown(id);
      return known_word && !library_->processor.IsByte(id) && !content.starts_with('<') ? std::nullopt
                                                                                        : std::optional(id);
    }
  return std::nullopt;
}

std::string_view SentencePieceModel::spelling(int32_t id) const {
  return library_->has(id) ? std::string_view(library_->processor.IdToPiece(id)) : std::string_view();
}

}  // namespace stepc
