#include "data/corpus.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace stepc {

namespace fs = std::filesystem;

// Makes streams of files, one after another, and counts their text as one piece of work.
class Corpus::Reader {
 public:
  Reader(const Tokenizer& tokenizer, const CorpusOptions& options) : tokenizer_(tokenizer), options_(options) {
    for (const auto& source : options.sources) add(source.files);
    add(options.held_out);
  }

  // Neighbours of one format are tokenised together.
  std::shared_ptr<const TokenStream> read(const std::vector<fs::path>& files) {
    std::vector<fs::path> shards;
    for (size_t begin = 0; begin < files.size();) {
      const DocumentFormat format = detect_format(files[begin], options_.format);
      size_t end = begin + 1;
      while (end < files.size() && detect_format(files[end], options_.format).hash() == format.hash()) ++end;
      const auto made = tokenized(
          {files.begin() + static_cast<ptrdiff_t>(begin), files.begin() + static_cast<ptrdiff_t>(end)}, format);
      shards.insert(shards.end(), made.begin(), made.end());
      begin = end;
    }
    return std::make_shared<const TokenStream>(shards);
  }

  // Of all that was read, in one call.
  void report_faults() const {
    if (faults_.any() && options_.cache.faults) options_.cache.faults(faults_);
  }

 private:
  void add(const std::vector<fs::path>& files) {
    for (const fs::path& file : files) total_ += size_of(file);
  }
  // What cannot be opened is told by who opens it.
  static uint64_t size_of(const fs::path& file) {
    std::error_code error;
    const uint64_t size = fs::file_size(file, error);
    return error ? 0 : size;
  }

  std::vector<fs::path> tokenized(const std::vector<fs::path>& files, const DocumentFormat& format) {
    ShardCacheOptions cache = options_.cache;
    cache.format = format;
    if (options_.cache.progress)
      cache.progress = [&](uint64_t done, uint64_t) { options_.cache.progress(done_ + done, total_); };
    cache.faults = [&](const TextFaults& faults) { faults_.add(faults); };
    const ShardCacheResult result = tokenize_files(tokenizer_, files, cache);
    for (const fs::path& file : files) done_ += size_of(file);
    return result.shards;
  }

  const Tokenizer& tokenizer_;
  const CorpusOptions& options_;
  uint64_t total_ = 0, done_ = 0;  // bytes of text
  TextFaults faults_;
};

Corpus::Corpus(const Tokenizer& tokenizer, const CorpusOptions& options)
    : seq_len_(static_cast<uint64_t>(std::max<int64_t>(options.seq_len, 1))), has_buckets_(!options.buckets.empty()) {
  USER_CHECK(!options.sources.empty(), "no text files are given");
  USER_CHECK(options.held_out_fraction >= 0 && options.held_out_fraction <= 0.5,
             "the held-out fraction must be from 0 to 0.5, found {}", options.held_out_fraction);
  Reader reader(tokenizer, options);
  for (const auto& source : options.sources) {
    const auto stream = reader.read(source.files);
    trained_.push_back({stream, source.weight, 0, stream->size()});
    files_ += source.files.size();
    count(*stream);
  }
  if (!options.held_out.empty()) {
    const auto stream = reader.read(options.held_out);
    hold_out(stream, 0, stream->size());
    files_ += options.held_out.size();
    count(*stream);
  }
  reader.report_faults();
  split(options);
  mixture_ = has_buckets_ ? std::make_unique<Mixture>(trained_, options.buckets, options.seed)
                          : std::make_unique<Mixture>(trained_, options.seq_len, options.seed);
  for (const Rows& rows : held_out_) (void)mixture_->length_for(rows.longest());
}

void Corpus::hold_out(const std::shared_ptr<const TokenStream>& stream, uint64_t begin, uint64_t tokens) {
  held_out_.push_back(has_buckets_ ? Rows::documents(stream, begin, tokens)
                                   : Rows::windows(stream, begin, tokens, seq_len_));
  held_out_tokens_ += tokens;
}

void Corpus::count(const TokenStream& stream) {
  text_bytes_ += stream.text_bytes();
  tokens_ += stream.size();
  documents_ += stream.documents();
  packs_documents_ = packs_documents_ || (!has_buckets_ && stream.documents() > 1);
}

void Corpus::split(const CorpusOptions& options) {
  if (options.held_out.empty() && options.held_out_fraction > 0)
    for (MixtureSource& source : trained_) {
      const auto taken =
          static_cast<uint64_t>(std::llround(static_cast<double>(source.stream->size()) * options.held_out_fraction));
      source.tokens -= taken;
      hold_out(source.stream, source.tokens, taken);
    }
  held_out_begins_.push_back(0);
  for (const Rows& rows : held_out_) held_out_begins_.push_back(held_out_begins_.back() + rows.count());
  if (held_out_.empty() || held_out_windows() > 0) return;
  USER_CHECK(!has_buckets_, "the held-out text of {} tokens has no whole document: hold out more, or give more text",
             held_out_tokens_);
  user_error("the held-out text has {} tokens, one sequence of length {} needs {}: hold out more, or give more text",
             held_out_tokens_, seq_len_, seq_len_ + 1);
}

uint64_t Corpus::train_windows() const {
  uint64_t windows = 0;
  for (size_t i = 0; i < trained_.size(); ++i) windows += mixture_->windows(i);
  return windows;
}

bool Corpus::has_labels(size_t source) const { return mixture_->rows(source).has_labels(); }

Corpus::HeldOutRow Corpus::held_out_row(uint64_t index) const {
  INTERNAL_CHECK_LT(index, held_out_windows());
  const auto next = std::ranges::upper_bound(held_out_begins_, index);
  const auto part = static_cast<size_t>(next - held_out_begins_.begin()) - 1;
  return {held_out_[part], index - held_out_begins_[part]};
}

uint64_t Corpus::held_out_length(uint64_t index) const {
  const HeldOutRow row = held_out_row(index);
  return row.rows.length(row.index);
}

void Corpus::fill_held_out(uint64_t index, const PackedRow& row) const {
  const HeldOutRow held_out = held_out_row(index);
  held_out.rows.fill(held_out.index, row);
}

}  // namespace stepc
