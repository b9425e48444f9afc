#include "data/tokenizer.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/model/sentencepiece_model.h"
#include "data/tokenize/model/word_cache.h"
#include "data/tokenize/model/word_model.h"
#include "data/tokenize/safe_cuts.h"

namespace stepc {

namespace {
constexpr uint64_t kMaxFileBytes = uint64_t{128} << 20;

// Ids index arrays, so one that is far above the number of tokens would make a small file large in memory.
void check_ids(const TokenizerFile& file, std::string_view what) {
  size_t tokens = file.added_tokens.size();
  int32_t largest = 0;
  for (const auto& token : file.added_tokens) largest = std::max(largest, token.id);
  if (const auto* bpe = std::get_if<BpeFile>(&file.model)) {
    tokens += bpe->vocab.size();
    for (const auto& [token, id] : bpe->vocab) largest = std::max(largest, id);
  } else {
    tokens += std::get<UnigramFile>(file.model).pieces.size();
  }
  USER_CHECK(static_cast<size_t>(largest) < 4 * tokens + 4096, "{}: an id is {}, and there are {} tokens", what,
             largest, tokens);
}

bool has_all_bytes(const BpeFile& bpe) {
  for (int byte = 0; byte <= UINT8_MAX; ++byte)
    if (!bpe.vocab.contains(alphabet_text(std::string(1, static_cast<char>(byte))))) return false;
  return true;
}
}  // namespace

// Either what tokenizer.json says or, where `library` is set, that alone.
struct Tokenizer::Parts {
  AddedTokenMatcher raw, normalized;  // the first is matched first, over the whole text
  std::vector<NormalizerStep> normalizer, normalizer_of_later_parts;
  SafeCuts cuts;
  WordCut words;
  std::unique_ptr<const WordModel> model;
  std::vector<DecoderStep> decoder;
  std::vector<std::string> spellings;  // by id
  std::map<std::string, int32_t, std::less<>> added;
  std::vector<int32_t> prefix, suffix;
  bool bytes_only = false;  // byte-level without merges, every byte a token: cutting into words changes nothing
  uint64_t hash = 0;
  std::unique_ptr<const SentencePieceModel> library;

  void spell(const std::string& token, int32_t id, std::string_view what);
  void add(const AddedToken& token, const BpeFile* bpe, std::string_view what);
};

void Tokenizer::Parts::spell(const std::string& token, int32_t id, std::string_view what) {
  USER_CHECK(!token.empty(), "{}: model.vocab has an empty token", what);
  if (static_cast<size_t>(id) >= spellings.size()) spellings.resize(static_cast<size_t>(id) + 1);
  USER_CHECK(spellings[id].empty(), "{}: model.vocab gives id {} to two tokens, one is {}", what, id, in_quotes(token));
  spellings[id] = token;
}

void Tokenizer::Parts::add(const AddedToken& token, const BpeFile* bpe, std::string_view what) {
  if (static_cast<size_t>(token.id) >= spellings.size()) spellings.resize(static_cast<size_t>(token.id) + 1);
  const auto in_vocab = bpe ? bpe->vocab.find(token.content) : std::map<std::string, int32_t>::const_iterator();
  if (bpe && in_vocab != bpe->vocab.end()) {
    USER_CHECK(in_vocab->second == token.id, "{}: added token {} has id {}, in model.vocab it has {}", what,
               in_quotes(token.content), token.id, in_vocab->second);
  } else {
    USER_CHECK(spellings[token.id].empty() || spellings[token.id] == token.content,
               "{}: added token {} has id {}, which another token has", what, in_quotes(token.content), token.id);
  }
  USER_CHECK(added.emplace(token.content, token.id).second, "{}: added token {} is there twice", what,
             in_quotes(token.content));
  spellings[token.id] = token.content;
  if (token.normalized) {
    normalized.add(token, stepc::normalized(token.content, normalizer));
  } else {
    raw.add(token, token.content);
  }
}

Tokenizer::Tokenizer(const TokenizerFile& file, std::string_view what) {
  check_ids(file, what);
  auto parts = std::make_shared<Parts>();
  parts->normalizer = file.normalizer;
  parts->normalizer_of_later_parts = steps_of_later_parts(file.normalizer);
  parts->cuts = SafeCuts(file);
  parts->words = file.words;
  parts->decoder = file.decoder;
  parts->prefix = file.prefix;
  parts->suffix = file.suffix;
  parts->hash = file.hash;
  const auto* bpe = std::get_if<BpeFile>(&file.model);
  if (bpe) {
    for (const auto& [token, id] : bpe->vocab) parts->spell(token, id, what);
    parts->model = bpe->byte_level ? make_byte_bpe(*bpe, what) : make_char_bpe(*bpe, what);
    const auto* cut = std::get_if<ByteLevelCut>(&parts->words);
    parts->bytes_only =
        cut && !cut->add_prefix_space && bpe->merges.empty() && !bpe->ignore_merges && has_all_bytes(*bpe);
  } else {
    const auto& unigram = std::get<UnigramFile>(file.model);
    parts->model = make_unigram(unigram, what);
    for (const auto& [piece, score] : unigram.pieces) parts->spellings.push_back(piece);
  }
  for (const AddedToken& token : file.added_tokens) parts->add(token, bpe, what);
  parts_ = std::move(parts);
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::string text = read_text(path, kMaxFileBytes);
  if (path.extension() != ".model") return Tokenizer(parse_tokenizer_json(text, path.string()), path.string());
  auto parts = std::make_shared<Parts>();
  parts->library = std::make_unique<const SentencePieceModel>(text, path.string());
  parts->hash = hash_bytes(std::as_bytes(std::span(text)));
  return Tokenizer(std::move(parts));
}

int32_t Tokenizer::vocab_size() const {
  return parts_->library ? parts_->library->vocab_size() : static_cast<int32_t>(parts_->spellings.size());
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  if (parts_->library) return parts_->library->added_token(content);
  const auto found = parts_->added.find(content);
  return found == parts_->added.end() ? std::nullopt : std::optional(found->second);
}

std::string_view Tokenizer::spelling(int32_t id) const {
  if (parts_->library) return parts_->library->spelling(id);
  return id >= 0 && id < vocab_size() ? std::string_view(parts_->spellings[id]) : std::string_view();
}

const std::vector<int32_t>& Tokenizer::prefix() const { return parts_->prefix; }
const std::vector<int32_t>& Tokenizer::suffix() const { return parts_->suffix; }
uint64_t Tokenizer::hash() const { return parts_->hash; }

std::string Tokenizer::decode(std::span<const int32_t> ids, InvalidBytes invalid) const {
  if (parts_->library) return parts_->library->decode(ids);
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const std::string_view token = spelling(id);
    if (!token.empty()) tokens.emplace_back(token);
  }
  return decoded(std::move(tokens), parts_->decoder, invalid);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const Progress& progress) const {
  std::vector<int32_t> ids;
  Encoder(*this, text.size()).encode(text, ids, progress);
  return ids;
}

class Tokenizer::Encoder::State {
 public:
  State(std::shared_ptr<const Parts> parts, uint64_t expected_bytes)
      : parts_(std::move(parts)), cache_(std::clamp<uint64_t>(expected_bytes / 8, 16, kMaxSlots)) {}

  void encode(std::string_view text, std::vector<int32_t>& ids, const Progress& progress) {
    progress_ = &progress;
    done_ = 0;
    next_report_ = kReportEvery;
    encode_part(text, ids, /*first=*/true);
    if (progress) progress(text.size());
  }

  void encode_parts(std::string_view text, const Sink& sink, const Progress& progress, size_t part_bytes) {
    static const Progress kSilent;
    progress_ = &kSilent;
    std::vector<int32_t>& ids = part_ids_;
    for (size_t begin = 0, end = 0; end < text.size(); begin = end) {
      end = text.size() - begin <= part_bytes ? text.size() : parts_->cuts.next(text, begin + part_bytes);
      ids.clear();
      encode_part(text.substr(begin, end - begin), ids, begin == 0);
      sink(ids);
      if (progress) progress(end);
    }
  }

 private:
  static constexpr uint64_t kMaxSlots = 1 << 16;
  static constexpr uint64_t kReportEvery = 1 << 20;

  // `first`: the part begins its text.
  void encode_part(std::string_view text, std::vector<int32_t>& ids, bool first) {
    ids_ = &ids;
    if (parts_->library) return parts_->library->encode(text, ids);
    parts_->raw.split(
        text,
        [&](std::string_view part, size_t at) {
          encode_raw(part, first && at == 0, first || at > 0 ? parts_->normalizer : parts_->normalizer_of_later_parts);
        },
        [&](int32_t id) { put_added(id); });
  }

  void encode_raw(std::string_view text, bool first, const std::vector<NormalizerStep>& steps) {
    const auto encode_normalized = [&](std::string_view whole) {
      parts_->normalized.split(
          whole, [&](std::string_view part, size_t at) { encode_plain(part, first && at == 0); },
          [&](int32_t id) { put_added(id); });
    };
    if (steps.empty()) {
      encode_normalized(text);
    } else {
      encode_normalized(normalized(text, steps));
    }
  }

  void encode_plain(std::string_view text, bool first) {
    if (parts_->bytes_only) {
      for (; text.size() > kReportEvery; text.remove_prefix(kReportEvery)) encode_new(text.substr(0, kReportEvery));
      return encode_new(text);
    }
    const auto* cut = std::get_if<ByteLevelCut>(&parts_->words);
    if (!cut || cut->add_prefix_space || cut->digits != ByteLevelCut::Digits::kAsOthers)
      return cut_words(parts_->words, text, first, [this](std::string_view word) { encode_word(word, word.size()); });
    // The same as cut_words, without a call through a pointer a word.
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = word_end(cut->pattern, text, begin);
      encode_word(text.substr(begin, end - begin), text.size() - begin);
      begin = end;
    }
  }

  void encode_new(std::string_view word) {
    parts_->model->encode(word, *ids_);
    advance(word.size());
  }

  void encode_word(std::string_view word, size_t readable) {
    if (word.size() > WordCache::kMaxBytes) return encode_new(word);
    WordCache::Entry& entry = cache_.find(word, readable);
    if (entry.count > 0) {
      ids_->insert(ids_->end(), entry.ids.begin(), entry.ids.begin() + entry.count);
      return advance(word.size());
    }
    const size_t begin = ids_->size();
    encode_new(word);
    const size_t count = ids_->size() - begin;
    if (count > WordCache::kMaxIds) return;
    std::copy_n(ids_->end() - static_cast<ptrdiff_t>(count), count, entry.ids.begin());
    entry.count = static_cast<uint8_t>(count);
  }

  void put_added(int32_t id) {
    ids_->push_back(id);
    advance(parts_->spellings[id].size());
  }

  void advance(size_t bytes) {
    done_ += bytes;
    if (done_ < next_report_) return;
    next_report_ = done_ / kReportEvery * kReportEvery + kReportEvery;
    if (*progress_) (*progress_)(done_);
  }

  std::shared_ptr<const Parts> parts_;
  WordCache cache_;
  std::vector<int32_t>* ids_ = nullptr;
  std::vector<int32_t> part_ids_;
  const Progress* progress_ = nullptr;
  uint64_t done_ = 0, next_report_ = 0;
};

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer, uint64_t expected_bytes)
    : state_(std::make_unique<State>(tokenizer.parts_, expected_bytes)) {}
Tokenizer::Encoder::~Encoder() = default;
Tokenizer::Encoder::Encoder(Encoder&&) noexcept = default;

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>& ids, const Progress& progress) {
  state_->encode(text, ids, progress);
}

void Tokenizer::Encoder::encode_parts(std::string_view text, const Sink& sink, const Progress& progress,
                                      size_t part_bytes) {
  state_->encode_parts(text, sink, progress, part_bytes);
}

}  // namespace stepc
