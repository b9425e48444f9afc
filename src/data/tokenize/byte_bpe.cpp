// Byte-level BPE: a word's bytes, merged.
#include <array>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenize/bpe.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/word_model.h"

namespace stepc {

namespace {
class ByteBpe : public WordModel {
 public:
  ByteBpe(const BpeFile& file, std::string_view what) : bpe_(file, what) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      const std::string token = alphabet_text(std::string(1, static_cast<char>(byte)));
      const auto found = file.vocab.find(token);
      USER_CHECK(found != file.vocab.end(), "{}: model.vocab lacks the token {} of byte {}", what, in_quotes(token),
                 byte);
      byte_ids_[byte] = found->second;
    }
    if (!file.ignore_merges) return;
    for (const auto& [token, id] : file.vocab)
      if (auto bytes = alphabet_bytes(token)) id_of_word_.emplace(std::move(*bytes), id);
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    if (!id_of_word_.empty()) {
      const auto found = id_of_word_.find(std::string(word));
      if (found != id_of_word_.end()) return ids.push_back(found->second);
    }
    const size_t begin = ids.size();
    for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    bpe_.merge(ids, begin);
  }

 private:
  std::array<int32_t, 256> byte_ids_ = {};
  Bpe bpe_;
  std::unordered_map<std::string, int32_t> id_of_word_;  // filled if merges are ignored for whole tokens
};
}  // namespace

std::unique_ptr<const WordModel> make_byte_bpe(const BpeFile& file, std::string_view what) {
  return std::make_unique<ByteBpe>(file, what);
}

}  // namespace stepc
