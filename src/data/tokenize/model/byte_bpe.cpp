// Byte-level BPE: a word's bytes, merged. A byte without a token (some vocabularies lack those that UTF-8 never has)
// becomes the unknown token or, where there is none, nothing.
#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/model/bpe.h"
#include "data/tokenize/model/word_model.h"

namespace stepc {

namespace {
class ByteBpe : public WordModel {
 public:
  ByteBpe(const BpeFile& file, std::string_view what) : bpe_(file, what), fuse_unk_(file.fuse_unk) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      const auto found = file.vocab.find(alphabet_text(std::string(1, static_cast<char>(byte))));
      byte_ids_[byte] = found == file.vocab.end() ? kNone : found->second;
    }
    lacks_bytes_ = std::ranges::count(byte_ids_, kNone) > 0;
    if (lacks_bytes_ && file.unk_token) {
      const auto found = file.vocab.find(*file.unk_token);
      USER_CHECK(found != file.vocab.end(), "{}: model.unk_token is {}, which model.vocab lacks", what,
                 in_quotes(*file.unk_token));
      unk_id_ = found->second;
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
    if (lacks_bytes_) {
      put_known(word, ids);
    } else {
      for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
    bpe_.merge(ids, begin);
  }

 private:
  static constexpr int32_t kNone = -1;

  void put_known(std::string_view word, std::vector<int32_t>& ids) const {
    bool after_unknown = false;
    for (const char byte : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
      const bool unknown = id == kNone;
      if (!unknown) ids.push_back(id);
      if (unknown && unk_id_ && !(fuse_unk_ && after_unknown)) ids.push_back(*unk_id_);
      after_unknown = unknown;
    }
  }

  std::array<int32_t, 256> byte_ids_ = {};  // kNone: the byte has no token
  bool lacks_bytes_ = false;
  std::optional<int32_t> unk_id_;
  Bpe bpe_;
  bool fuse_unk_;
  std::unordered_map<std::string, int32_t> id_of_word_;  // filled if merges are ignored for whole tokens
};
}  // namespace

std::unique_ptr<const WordModel> make_byte_bpe(const BpeFile& file, std::string_view what) {
  return std::make_unique<ByteBpe>(file, what);
}

}  // namespace stepc
