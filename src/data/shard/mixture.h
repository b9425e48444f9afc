// Training batches out of weighted sources. Which window of which source sample i is, is a pure function of (seed, i):
// it depends neither on ranks nor on workers, nothing is stored, and resuming is asking for the next sample.
//
// Samples come in blocks of kBlock. In each block every source has its share of places, to the nearest, in an order of
// the block's own; within a source the samples are the endless order of data/sample_order.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/shard/token_stream.h"

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

  // Every source has at least one window, or it is a UserError.
  Mixture(std::vector<MixtureSource> sources, int64_t seq_len, uint64_t seed);

  struct Place {
    size_t source;
    uint64_t window;  // of seq_len tokens
  };
  [[nodiscard]] Place place_of(uint64_t sample) const;
  [[nodiscard]] uint64_t windows(size_t source) const;
  // How often an average token of the source has been seen after so many samples.
  [[nodiscard]] double epochs(size_t source, uint64_t samples) const;
  // Of everything that decides about batches, the seed too.
  [[nodiscard]] uint64_t hash() const;
  [[nodiscard]] int64_t seq_len() const { return static_cast<int64_t>(seq_len_); }

  // Samples first .. first + batch - 1.
  void fill(uint64_t first, size_t batch, PackedBatch& out) const;

 private:
  std::vector<MixtureSource> sources_;
  std::vector<uint64_t> shares_;  // places begin at shares_[i] in a block, and end at shares_[i + 1]
  uint64_t seq_len_, seed_;
};

}  // namespace stepc
