#include "data/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "data/byte_alphabet.h"

namespace stepc {

namespace {
constexpr uint64_t kMaxFileBytes = uint64_t{128} << 20;

std::array<int32_t, 256> byte_ids_of(const TokenizerFile& file, std::string_view what) {
  std::array<int32_t, 256> ids = {};
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    const std::string token = alphabet_text(std::string(1, static_cast<char>(byte)));
    const auto found = file.vocab.find(token);
    USER_CHECK(found != file.vocab.end(), "{}: model.vocab lacks the token {} of byte {}", what, in_quotes(token),
               byte);
    ids[byte] = found->second;
  }
  return ids;
}

int32_t id_of(const TokenizerFile& file, const std::string& token, std::string_view what) {
  const auto found = file.vocab.find(token);
  USER_CHECK(found != file.vocab.end(), "{}: model.merges needs the token {}, which model.vocab lacks", what,
             in_quotes(token));
  return found->second;
}

// What a token's spelling decodes to; spellings outside the alphabet stand for themselves.
std::string decoded(const std::string& token) { return alphabet_bytes(token).value_or(token); }
}  // namespace

Tokenizer::Tokenizer(const TokenizerFile& file, std::string_view what) : bpe_(byte_ids_of(file, what)) {
  int32_t largest = 0;
  for (const auto& [token, id] : file.vocab) largest = std::max(largest, id);
  for (const auto& token : file.added_tokens) largest = std::max(largest, token.id);
  bytes_of_id_.resize(static_cast<size_t>(largest) + 1);
  std::vector<bool> taken(bytes_of_id_.size());
  for (const auto& [token, id] : file.vocab) {
    USER_CHECK(!token.empty(), "{}: model.vocab has an empty token", what);
    USER_CHECK(!taken[id], "{}: model.vocab gives id {} to two tokens, one is {}", what, id, in_quotes(token));
    taken[id] = true;
    bytes_of_id_[id] = decoded(token);
  }
  add_merges(file, what);
  add_tokens(file, what);
}

void Tokenizer::add_merges(const TokenizerFile& file, std::string_view what) {
  for (const auto& [left, right] : file.merges) {
    const int32_t left_id = id_of(file, left, what);
    const int32_t right_id = id_of(file, right, what);
    const bool is_new = bpe_.add_merge(left_id, right_id, id_of(file, left + right, what));
    USER_CHECK(is_new, "{}: model.merges has {} {} twice", what, in_quotes(left), in_quotes(right));
  }
  if (bpe_.has_merges() && file.split_words) words_.emplace();
}

void Tokenizer::add_tokens(const TokenizerFile& file, std::string_view what) {
  for (const auto& token : file.added_tokens) {
    const auto in_vocab = file.vocab.find(token.content);
    if (in_vocab != file.vocab.end()) {
      USER_CHECK(in_vocab->second == token.id, "{}: added token {} has id {}, in model.vocab it has {}", what,
                 in_quotes(token.content), token.id, in_vocab->second);
    } else {
      USER_CHECK(bytes_of_id_[token.id].empty(), "{}: added token {} has id {}, which another token has", what,
                 in_quotes(token.content), token.id);
    }
    USER_CHECK(!added_token(token.content), "{}: added token {} is there twice", what, in_quotes(token.content));
    bytes_of_id_[token.id] = decoded(token.content);
    const Added added = {token.content, token.id};
    added_.push_back(added);
    Matcher& matcher = token.normalized ? normalized_ : raw_;
    matcher.empty = false;
    matcher.by_byte[static_cast<uint8_t>(token.content[0])].push_back(added);
  }
  for (Matcher* matcher : {&raw_, &normalized_})
    for (auto& tokens : matcher->by_byte)
      std::sort(tokens.begin(), tokens.end(),
                [](const Added& a, const Added& b) { return a.content.size() > b.content.size(); });
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return Tokenizer(parse_tokenizer_json(read_text(path, kMaxFileBytes), path.string()), path.string());
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  for (const auto& added : added_)
    if (added.content == content) return added.id;
  return std::nullopt;
}

const Tokenizer::Added* Tokenizer::Matcher::at(std::string_view text) const {
  for (const auto& added : by_byte[static_cast<uint8_t>(text[0])])
    if (text.starts_with(added.content)) return &added;
  return nullptr;
}

class Tokenizer::Encoding {
 public:
  Encoding(const Tokenizer& tokenizer, const Progress& progress) : tokenizer_(tokenizer), progress_(progress) {}

  std::vector<int32_t> run(std::string_view text) {
    ids_.reserve(tokenizer_.bpe_.has_merges() ? text.size() / 3 : text.size());
    split_added(text, tokenizer_.raw_, [this](std::string_view between) {
      split_added(between, tokenizer_.normalized_, [this](std::string_view plain) { encode_plain(plain); });
    });
    if (progress_) progress_(done_);
    return std::move(ids_);
  }

 private:
  template <class Between>
  void split_added(std::string_view text, const Matcher& matcher, const Between& between) {
    size_t begin = 0;
    for (size_t at = 0; at < text.size() && !matcher.empty;) {
      const Added* added = matcher.at(text.substr(at));
      if (!added) {
        ++at;
        continue;
      }
      if (at > begin) between(text.substr(begin, at - begin));
      ids_.push_back(added->id);
      advance(added->content.size());
      begin = at += added->content.size();
    }
    if (begin < text.size()) between(text.substr(begin));
  }

  void encode_plain(std::string_view text) {
    if (!tokenizer_.bpe_.has_merges()) {
      for (const char byte : text) {
        ids_.push_back(tokenizer_.bpe_.byte_id(byte));
        advance(1);
      }
    } else if (tokenizer_.words_) {
      (*tokenizer_.words_)(text, [this](std::string_view word) { encode_word(word); });
    } else {
      encode_word(text);
    }
  }

  // Text repeats its words: each is merged once, and its ids copied from then on.
  void encode_word(std::string_view word) {
    constexpr size_t kMaxCachedBytes = 32;
    constexpr size_t kMaxCachedWords = 1 << 18;
    const auto found = cache_.find(word);
    const size_t begin = ids_.size();
    if (found != cache_.end()) {
      const auto [first, count] = found->second;
      ids_.resize(begin + count);
      std::copy_n(ids_.begin() + static_cast<ptrdiff_t>(first), count, ids_.begin() + static_cast<ptrdiff_t>(begin));
    } else {
      tokenizer_.bpe_.encode(word, ids_);
      if (word.size() <= kMaxCachedBytes && cache_.size() < kMaxCachedWords)
        cache_.emplace(word, std::pair(begin, ids_.size() - begin));
    }
    advance(word.size());
  }

  void advance(size_t bytes) {
    constexpr uint64_t kReportEvery = 1 << 20;
    const uint64_t before = done_;
    done_ += bytes;
    if (progress_ && before / kReportEvery != done_ / kReportEvery) progress_(done_);
  }

  const Tokenizer& tokenizer_;
  const Progress& progress_;
  std::vector<int32_t> ids_;
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache_;  // word -> where its ids lie in ids_
  uint64_t done_ = 0;
};

std::vector<int32_t> Tokenizer::encode(std::string_view text, const Progress& progress) const {
  return Encoding(*this, progress).run(text);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids)
    if (id >= 0 && id < vocab_size()) text += bytes_of_id_[id];
  return text;
}

}  // namespace stepc
