// Text files as training and held-out windows of tokens, held in memory. The last part of the text is held out; each
// part is cut into windows of seq_len + 1 tokens, the last token of one being the first of the next, so that every
// token is predicted once.
//
//   tokens  0 1 2 3 4 5 6 7 8 9        seq_len 3: windows 0-3, 3-6, 6-9
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace stepc {

struct TextDatasetOptions {
  std::vector<std::filesystem::path> files;
  int64_t seq_len = 0;
  double eval_fraction = 0;  // of the tokens, in [0, 0.5]; 0: nothing is held out
  // The added token put after every file if the tokenizer has it; empty for none.
  std::string separator = "<|endoftext|>";
  // Called with bytes done and bytes in all.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

class TextDataset {
 public:
  // Reads and tokenises the files. Both parts have at least one window, or it is a UserError.
  TextDataset(const Tokenizer& tokenizer, const TextDatasetOptions& options);

  [[nodiscard]] int64_t seq_len() const { return seq_len_; }
  [[nodiscard]] int64_t total_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  [[nodiscard]] uint64_t text_bytes() const { return text_bytes_; }
  [[nodiscard]] int64_t train_windows() const { return windows_of(train_tokens_); }
  [[nodiscard]] int64_t eval_windows() const { return windows_of(total_tokens() - train_tokens_); }
  // Of tokens, split and window length: equal hashes give equal batches.
  [[nodiscard]] uint64_t hash() const { return hash_; }

  // Training samples first .. first + batch - 1 of the order that `seed` gives, at any first >= 0.
  // out: (batch, seq_len + 1)
  void fill_train_batch(uint64_t seed, int64_t first, int64_t batch, std::span<int64_t> out) const;
  // Held-out windows first .. first + batch - 1, in the order of the text. out: (batch, seq_len + 1)
  void fill_eval_batch(int64_t first, int64_t batch, std::span<int64_t> out) const;

 private:
  [[nodiscard]] int64_t windows_of(int64_t tokens) const { return tokens > 0 ? (tokens - 1) / seq_len_ : 0; }
  void read(const Tokenizer& tokenizer, const TextDatasetOptions& options);
  void copy_window(int64_t begin, std::span<int64_t> out) const;

  std::vector<int32_t> tokens_;
  int64_t seq_len_ = 0;
  int64_t train_tokens_ = 0;  // the first part
  uint64_t text_bytes_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace stepc
