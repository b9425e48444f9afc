// Unigram: of all ways to cut a word into pieces, the one whose logarithms of probability sum to the most. A character
// that no piece stands for costs ten more than the least likely piece.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "data/tokenize/model/byte_tokens.h"
#include "data/tokenize/model/byte_trie.h"
#include "data/tokenize/model/word_model.h"
#include "data/utf8.h"

namespace stepc {

namespace {
class Unigram : public WordModel {
 public:
  Unigram(const UnigramFile& file, std::string_view what) : unk_id_(file.unk_id) {
    USER_CHECK(static_cast<size_t>(unk_id_) < file.pieces.size(), "{}: model.unk_id is {}, and model.vocab has {}",
               what, unk_id_, file.pieces.size());
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [piece, score] : file.pieces) {
      USER_CHECK(!piece.empty(), "{}: model.vocab has an empty piece", what);
      scores_.push_back(score);
      least = std::min(least, score);
      ids_[piece] = static_cast<int32_t>(scores_.size() - 1);  // of two equal pieces the later counts
    }
    for (const auto& [piece, score] : file.pieces) trie_.insert(piece, ids_[piece]);
    constexpr double kUnknownPenalty = 10;
    unk_score_ = least - kUnknownPenalty;
    if (file.byte_fallback)
      bytes_ = ByteTokens([&](std::string_view token) -> std::optional<int32_t> {
        const auto found = ids_.find(std::string(token));
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
      });
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    std::vector<Node> ends(word.size() + 1);  // the best path to each byte
    for (size_t at = 0; at < word.size();) {
      const size_t char_bytes = std::max<size_t>(decode_utf8(word, at).bytes, 1);
      bool has_char = false;
      trie_.prefixes(word.substr(at), [&](size_t bytes, int32_t piece) {
        offer(ends[at + bytes], ends[at].score + scores_[piece], at, piece);
        has_char = has_char || bytes == char_bytes;
      });
      if (!has_char) offer(ends[at + char_bytes], ends[at].score + unk_score_, at, unk_id_);
      at += char_bytes;
    }
    append_path(word, ends, ids);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Node {
    double score = 0;
    size_t begin = kNone;  // of the piece that ends here
    int32_t id = 0;
  };
  static void offer(Node& node, double score, size_t begin, int32_t id) {
    if (node.begin == kNone || score > node.score) node = {score, begin, id};
  }

  // Walks back from the end; unknown characters side by side are one unknown piece.
  void append_path(std::string_view word, const std::vector<Node>& ends, std::vector<int32_t>& ids) const {
    std::vector<std::pair<size_t, size_t>> pieces;  // from the last to the first
    bool last_is_unk = false;
    for (size_t end = word.size(); end > 0; end = ends[end].begin) {
      const Node& node = ends[end];
      const bool is_unk = node.id == unk_id_;
      if (is_unk && last_is_unk) {
        pieces.back().first = node.begin;
      } else {
        pieces.emplace_back(node.begin, end);
      }
      last_is_unk = is_unk;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      const auto text = word.substr(piece->first, piece->second - piece->first);
      const auto found = ids_.find(std::string(text));
      if (found != ids_.end()) {
        ids.push_back(found->second);
      } else if (!bytes_.append(text, ids)) {
        ids.push_back(unk_id_);
      }
    }
  }

  std::unordered_map<std::string, int32_t> ids_;
  std::vector<double> scores_;
  ByteTrie trie_;
  ByteTokens bytes_;
  int32_t unk_id_;
  double unk_score_ = 0;
};
}  // namespace

std::unique_ptr<const WordModel> make_unigram(const UnigramFile& file, std::string_view what) {
  return std::make_unique<Unigram>(file, what);
}

}  // namespace stepc
