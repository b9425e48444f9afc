// BPE over characters, as SentencePiece has it: what has no token becomes its bytes' tokens or the unknown token.
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenize/model/bpe.h"
#include "data/tokenize/model/byte_tokens.h"
#include "data/tokenize/model/word_model.h"
#include "data/utf8.h"

namespace stepc {

namespace {
class CharBpe : public WordModel {
 public:
  CharBpe(const BpeFile& file, std::string_view what)
      : bpe_(file, what), vocab_(file.vocab), fuse_unk_(file.fuse_unk), ignore_merges_(file.ignore_merges) {
    const auto find = [&](std::string_view token) -> std::optional<int32_t> {
      const auto found = vocab_.find(token);
      return found == vocab_.end() ? std::nullopt : std::optional(found->second);
    };
    for (const auto& [token, id] : vocab_) {
      const Utf8Char first = token.empty() ? Utf8Char() : decode_utf8(token, 0);
      if (first.bytes > 0 && first.bytes == token.size()) id_of_char_.insert(first.value, id);
    }
    if (file.byte_fallback) bytes_ = ByteTokens(find);
    if (!file.unk_token) return;
    unk_id_ = find(*file.unk_token);
    USER_CHECK(unk_id_.has_value(), "{}: model.unk_token is {}, which model.vocab lacks", what,
               in_quotes(*file.unk_token));
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    if (ignore_merges_) {
      const auto whole = vocab_.find(word);
      if (whole != vocab_.end()) return ids.push_back(whole->second);
    }
    const size_t begin = ids.size();
    bool unk_waits = false;  // an unknown token is due before the next known one
    const auto put_unk = [&] {
      if (unk_waits) ids.push_back(*unk_id_);
      unk_waits = false;
    };
    for (size_t at = 0; at < word.size();) {
      const Utf8Char next = decode_utf8(word, at);
      const size_t bytes = std::max<size_t>(next.bytes, 1);
      const int32_t* id = next.bytes > 0 ? id_of_char_.find(next.value) : nullptr;
      if (id) {
        put_unk();
        ids.push_back(*id);
      } else if (!bytes_.append(word.substr(at, bytes), ids) && unk_id_) {
        if (!fuse_unk_) put_unk();
        unk_waits = true;
      }
      at += bytes;
    }
    put_unk();
    bpe_.merge(ids, begin);
  }

 private:
  Bpe bpe_;
  std::map<std::string, int32_t, std::less<>> vocab_;
  FlatMap<int32_t> id_of_char_;
  ByteTokens bytes_;
  std::optional<int32_t> unk_id_;
  bool fuse_unk_, ignore_merges_;
};
}  // namespace

std::unique_ptr<const WordModel> make_char_bpe(const BpeFile& file, std::string_view what) {
  return std::make_unique<CharBpe>(file, what);
}

}  // namespace stepc
