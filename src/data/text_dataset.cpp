#include "data/text_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/sample_order.h"

namespace stepc {

namespace {
constexpr int64_t kMaxSeqLen = int64_t{1} << 30;
}  // namespace

TextDataset::TextDataset(const Tokenizer& tokenizer, const TextDatasetOptions& options) : seq_len_(options.seq_len) {
  USER_CHECK(!options.files.empty(), "no text files are given");
  USER_CHECK(options.seq_len >= 1 && options.seq_len <= kMaxSeqLen,
             "the sequence length must be from 1 to {}, found {}", kMaxSeqLen, options.seq_len);
  USER_CHECK(options.eval_fraction >= 0 && options.eval_fraction <= 0.5,
             "the held-out fraction must be from 0 to 0.5, found {}", options.eval_fraction);
  read(tokenizer, options);

  const auto eval_tokens =
      static_cast<int64_t>(std::llround(static_cast<double>(tokens_.size()) * options.eval_fraction));
  train_tokens_ = total_tokens() - eval_tokens;
  USER_CHECK(train_windows() >= 1, "the training text has {} tokens, one sequence of length {} needs {}", train_tokens_,
             seq_len_, seq_len_ + 1);
  USER_CHECK(options.eval_fraction == 0 || eval_windows() >= 1,
             "the held-out text has {} tokens, one sequence of length {} needs {}: hold out more, or give more text",
             eval_tokens, seq_len_, seq_len_ + 1);
  const std::array<uint64_t, 3> parts = {hash_bytes(std::as_bytes(std::span(tokens_))), static_cast<uint64_t>(seq_len_),
                                         static_cast<uint64_t>(train_tokens_)};
  hash_ = hash_bytes(std::as_bytes(std::span(parts)));
}

void TextDataset::read(const Tokenizer& tokenizer, const TextDatasetOptions& options) {
  std::vector<MappedFile> files;
  for (const auto& path : options.files) {
    text_bytes_ += files.emplace_back(path).bytes().size();
    USER_CHECK(!files.back().bytes().empty(), "{} is empty", path.string());
  }
  const auto separator = tokenizer.added_token(options.separator);
  uint64_t done = 0;
  for (const auto& file : files) {
    Tokenizer::Progress progress;
    if (options.progress) progress = [&](uint64_t bytes) { options.progress(done + bytes, text_bytes_); };
    const auto ids = tokenizer.encode(file.text(), progress);
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    if (separator) tokens_.push_back(*separator);
    done += file.bytes().size();
  }
}

void TextDataset::copy_window(int64_t begin, std::span<int64_t> out) const {
  INTERNAL_CHECK_LE(begin + seq_len_ + 1, total_tokens());
  std::copy_n(tokens_.begin() + begin, seq_len_ + 1, out.begin());
}

void TextDataset::fill_train_batch(uint64_t seed, int64_t first, int64_t batch, std::span<int64_t> out) const {
  const auto width = static_cast<size_t>(seq_len_ + 1);
  INTERNAL_CHECK(first >= 0 && batch >= 0, "samples {} + {}", first, batch);
  INTERNAL_CHECK_EQ(out.size(), static_cast<size_t>(batch) * width);
  for (int64_t row = 0; row < batch; ++row) {
    const uint64_t window =
        window_of_sample(seed, static_cast<uint64_t>(train_windows()), static_cast<uint64_t>(first + row));
    copy_window(static_cast<int64_t>(window) * seq_len_, out.subspan(static_cast<size_t>(row) * width, width));
  }
}

void TextDataset::fill_eval_batch(int64_t first, int64_t batch, std::span<int64_t> out) const {
  const auto width = static_cast<size_t>(seq_len_ + 1);
  INTERNAL_CHECK(first >= 0 && batch >= 0 && first + batch <= eval_windows(), "windows {} + {} of {}", first, batch,
                 eval_windows());
  INTERNAL_CHECK_EQ(out.size(), static_cast<size_t>(batch) * width);
  for (int64_t row = 0; row < batch; ++row)
    copy_window(train_tokens_ + (first + row) * seq_len_, out.subspan(static_cast<size_t>(row) * width, width));
}

}  // namespace stepc
