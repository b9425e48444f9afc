// All that a run reads: its sources as token shards, the mixture that training samples come from, and the part that is
// held out for evaluation.
//
//   source 1   a.txt b.jsonl    tokens [ train ....................... | held out ]   weight 3
//   source 2   chats.jsonl      tokens [ train ........... | held out ]               weight 1
//
// Each source's last part is held out, or files of their own are. Windows are seq_len tokens, and the token after the
// last is that one's label; with buckets a window is a document, padded to one of those lengths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/shard/mixture.h"
#include "data/shard/shard_cache.h"
#include "data/source/detect_format.h"
#include "data/tokenizer.h"

namespace stepc {

struct CorpusOptions {
  struct Source {
    std::vector<std::filesystem::path> files;
    double weight = 1;
  };
  std::vector<Source> sources;
  std::vector<std::filesystem::path> held_out;  // empty: the last part of each source
  double held_out_fraction = 0;                 // of a source's tokens, in [0, 0.5]
  int64_t seq_len = 0;
  std::vector<int64_t> buckets = {};  // ascending; empty: windows of seq_len tokens
  uint64_t seed = 0;
  FormatHints format;
  // Progress counts the text of all files; the format is each file's own.
  ShardCacheOptions cache;
};

class Corpus {
 public:
  // Tokenises what is not in the cache. Every source has at least one window, and if something is held out, that too,
  // or it is a UserError.
  Corpus(const Tokenizer& tokenizer, const CorpusOptions& options);

  [[nodiscard]] const Mixture& mixture() const { return *mixture_; }
  [[nodiscard]] size_t sources() const { return trained_.size(); }
  [[nodiscard]] uint64_t train_windows() const;
  // Whether any window of the source has a label that training learns. Reads until one has.
  [[nodiscard]] bool has_labels(size_t source) const;
  [[nodiscard]] uint64_t held_out_windows() const { return held_out_begins_.back(); }
  // Of held-out window `index`.
  [[nodiscard]] uint64_t held_out_length(uint64_t index) const;
  // The window, in the order of the text; see Rows::fill(). row: (seq)
  void fill_held_out(uint64_t index, const PackedRow& row) const;
  // Whether one row may hold more than one document that has labels.
  [[nodiscard]] bool packs_documents() const { return packs_documents_; }

  [[nodiscard]] size_t files() const { return files_; }
  [[nodiscard]] uint64_t text_bytes() const { return text_bytes_; }
  [[nodiscard]] uint64_t tokens() const { return tokens_; }
  [[nodiscard]] uint64_t documents() const { return documents_; }

 private:
  class Reader;
  struct HeldOutRow {
    const Rows& rows;
    uint64_t index;
  };

  void hold_out(const std::shared_ptr<const TokenStream>& stream, uint64_t begin, uint64_t tokens);
  [[nodiscard]] HeldOutRow held_out_row(uint64_t index) const;
  void split(const CorpusOptions& options);
  void count(const TokenStream& stream);

  uint64_t seq_len_;
  bool has_buckets_;
  std::vector<MixtureSource> trained_;
  std::vector<Rows> held_out_;
  uint64_t held_out_tokens_ = 0;
  std::vector<uint64_t> held_out_begins_;  // the first window of each held-out part, and the end of the last
  std::unique_ptr<Mixture> mixture_;
  bool packs_documents_ = false;
  size_t files_ = 0;
  uint64_t text_bytes_ = 0, tokens_ = 0, documents_ = 0;
};

}  // namespace stepc
