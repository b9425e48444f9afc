// Training batches out of weighted sources. Which row of which source sample i is, is a pure function of (seed, i):
// it depends neither on ranks nor on workers, nothing is stored, and resuming is asking for the next sample.
//
// Samples come in blocks of kBlock. In each block every source has its share of places, to the nearest, in an order of
// the block's own; within a source the samples are the endless order of data/sample_order.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/shard/rows.h"

namespace stepc {

struct MixtureSource {
  std::shared_ptr<const TokenStream> stream;
  double weight = 1;               // relative to the others
  uint64_t begin = 0, tokens = 0;  // the part that is used
};

// (batch, seq) each, row by row; see PackedRow.
struct PackedBatch {
  std::vector<int64_t> tokens, labels, positions, documents;
  [[nodiscard]] PackedRow row(size_t index, size_t seq);
  void resize(size_t batch, size_t seq);
};

class Mixture {
 public:
  static constexpr uint64_t kBlock = 4096;

  // Rows are windows of seq_len tokens. Every source has at least one, or it is a UserError.
  Mixture(std::vector<MixtureSource> sources, int64_t seq_len, uint64_t seed);
  // Rows are documents, padded to one of these lengths, in ascending order. Every source has at least one row, and the
  // last length holds all of them, or it is a UserError.
  Mixture(std::vector<MixtureSource> sources, std::vector<int64_t> buckets, uint64_t seed);

  struct Place {
    size_t source;
    uint64_t window;  // or document
  };
  [[nodiscard]] Place place_of(uint64_t sample) const;
  [[nodiscard]] uint64_t windows(size_t source) const { return rows_[source].count(); }
  [[nodiscard]] const Rows& rows(size_t source) const { return rows_[source]; }
  // How often an average token of the source has been seen after so many samples.
  [[nodiscard]] double epochs(size_t source, uint64_t samples) const;
  // Of everything that decides about batches, the seed too.
  [[nodiscard]] uint64_t hash() const;
  // Of rows as they are padded: seq_len, or the buckets.
  [[nodiscard]] const std::vector<int64_t>& lengths() const { return lengths_; }
  // The least of them that holds rows of so many tokens.
  [[nodiscard]] int64_t length_for(uint64_t tokens) const;
  // And samples first .. first + batch - 1.
  [[nodiscard]] int64_t length_of(uint64_t first, size_t batch) const;
  // Of a row, padding left out.
  [[nodiscard]] double mean_tokens() const;

  // Samples first .. first + batch - 1 in rows of `seq` tokens: cut or padded, see Rows::fill().
  void fill(uint64_t first, size_t batch, int64_t seq, PackedBatch& out) const;
  // In rows of length_of().
  void fill(uint64_t first, size_t batch, PackedBatch& out) const { fill(first, batch, length_of(first, batch), out); }

 private:
  // Checks the sources, and gives each its share.
  void share_out();

  std::vector<MixtureSource> sources_;
  std::vector<Rows> rows_;        // of each source
  std::vector<uint64_t> shares_;  // places begin at shares_[i] in a block, and end at shares_[i + 1]
  std::vector<int64_t> lengths_;
  uint64_t seed_;
  bool has_documents_;  // rows are documents
};

}  // namespace stepc
