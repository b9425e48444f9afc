#include "data/shard/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/hash.h"
#include "data/sample_order.h"

namespace stepc {

namespace {
constexpr int64_t kMaxSeqLen = int64_t{1} << 30;

// Places a block for each weight: at least one, all of the block together, by largest remainder.
std::vector<uint64_t> places_of(const std::vector<MixtureSource>& sources) {
  double sum = 0;
  for (const auto& source : sources) {
    USER_CHECK(std::isfinite(source.weight) && source.weight > 0,
               "the weight of a data source must be a positive number, found {}", source.weight);
    sum += source.weight;
  }
  USER_CHECK(std::isfinite(sum), "the weights of the data sources are too large");
  std::vector<uint64_t> places;
  std::vector<double> missing;
  for (const auto& source : sources) {
    const double exact = source.weight / sum * static_cast<double>(Mixture::kBlock);
    places.push_back(std::max<uint64_t>(1, static_cast<uint64_t>(exact)));
    missing.push_back(exact - static_cast<double>(places.back()));
  }
  auto given = static_cast<int64_t>(std::accumulate(places.begin(), places.end(), uint64_t{0}));
  for (const int64_t step = given < static_cast<int64_t>(Mixture::kBlock) ? 1 : -1;
       given != static_cast<int64_t>(Mixture::kBlock); given += step) {
    size_t best = places.size();
    for (size_t i = 0; i < places.size(); ++i) {
      if (step < 0 && places[i] == 1) continue;
      if (best == places.size() || static_cast<double>(step) * missing[i] > static_cast<double>(step) * missing[best])
        best = i;
    }
    places[best] += static_cast<uint64_t>(step);
    missing[best] -= static_cast<double>(step);
  }
  return places;
}

uint64_t mixed(uint64_t a, uint64_t b) {
  const uint64_t both[] = {a, b};
  return hash_bytes(std::as_bytes(std::span(both)));
}
}  // namespace

PackedRow PackedBatch::row(size_t index, size_t seq) {
  const auto part = [&](std::vector<int64_t>& values) { return std::span(values).subspan(index * seq, seq); };
  return {part(tokens), part(labels), part(positions), part(documents)};
}

void PackedBatch::resize(size_t batch, size_t seq) {
  for (auto* values : {&tokens, &labels, &positions, &documents}) values->resize(batch * seq);
}

Mixture::Mixture(std::vector<MixtureSource> sources, int64_t seq_len, uint64_t seed)
    : sources_(std::move(sources)), lengths_({seq_len}), seed_(seed), has_documents_(false) {
  USER_CHECK(seq_len >= 1 && seq_len <= kMaxSeqLen, "the sequence length must be from 1 to {}, found {}", kMaxSeqLen,
             seq_len);
  for (const MixtureSource& source : sources_)
    rows_.push_back(Rows::windows(source.stream, source.begin, source.tokens, static_cast<uint64_t>(seq_len)));
  share_out();
}

Mixture::Mixture(std::vector<MixtureSource> sources, std::vector<int64_t> buckets, uint64_t seed)
    : sources_(std::move(sources)), lengths_(std::move(buckets)), seed_(seed), has_documents_(true) {
  INTERNAL_CHECK(!lengths_.empty() && std::ranges::is_sorted(lengths_) && lengths_.front() >= 1);
  for (const MixtureSource& source : sources_)
    rows_.push_back(Rows::documents(source.stream, source.begin, source.tokens));
  share_out();
}

void Mixture::share_out() {
  USER_CHECK(!sources_.empty(), "no data source is given");
  USER_CHECK(sources_.size() <= kBlock / 4, "{} data sources are given, at most {} are taken", sources_.size(),
             kBlock / 4);
  for (size_t i = 0; i < sources_.size(); ++i) {
    INTERNAL_CHECK_LE(sources_[i].begin + sources_[i].tokens, sources_[i].stream->size());
    const uint64_t tokens = sources_[i].tokens;
    USER_CHECK(has_documents_ || windows(i) >= 1, "data source {} has {} tokens, one sequence of length {} needs {}",
               i + 1, tokens, lengths_.front(), lengths_.front() + 1);
    USER_CHECK(windows(i) >= 1, "data source {} has no document of at least two tokens", i + 1);
  }
  std::ignore = length_for(std::ranges::max(rows_, {}, &Rows::longest).longest());
  const auto places = places_of(sources_);
  shares_.push_back(0);
  for (const uint64_t count : places) shares_.push_back(shares_.back() + count);
}

Mixture::Place Mixture::place_of(uint64_t sample) const {
  const uint64_t block = sample / kBlock;
  const uint64_t place =
      sources_.size() == 1 ? sample % kBlock : Permutation(kBlock, mixed(seed_, block))(sample % kBlock);
  const auto share = std::upper_bound(shares_.begin(), shares_.end(), place) - 1;
  const auto source = static_cast<size_t>(share - shares_.begin());
  const uint64_t index = block * (shares_[source + 1] - shares_[source]) + (place - *share);
  return {source, window_of_sample(mixed(seed_, ~source), windows(source), index)};
}

double Mixture::epochs(size_t source, uint64_t samples) const {
  const double share = static_cast<double>(shares_[source + 1] - shares_[source]) / static_cast<double>(kBlock);
  return static_cast<double>(samples) * share / static_cast<double>(windows(source));
}

int64_t Mixture::length_for(uint64_t tokens) const {
  const auto found = std::ranges::lower_bound(lengths_, static_cast<int64_t>(tokens));
  USER_CHECK(
      found != lengths_.end(),
      "a document makes a row of {} tokens, and the largest of data.buckets is {}: add one of at least {}, or give "
      "none, which packs documents into rows of one length",
      tokens, lengths_.back(), tokens);
  return *found;
}

int64_t Mixture::length_of(uint64_t first, size_t batch) const {
  if (!has_documents_) return lengths_.front();
  uint64_t longest = 0;
  for (size_t row = 0; row < batch; ++row) {
    const Place place = place_of(first + row);
    longest = std::max(longest, rows_[place.source].length(place.window));
  }
  return length_for(longest);
}

double Mixture::mean_tokens() const {
  double sum = 0;
  for (size_t i = 0; i < rows_.size(); ++i)
    sum += static_cast<double>(shares_[i + 1] - shares_[i]) * rows_[i].mean_length();
  return sum / static_cast<double>(kBlock);
}

uint64_t Mixture::hash() const {
  std::vector<uint64_t> parts;
  if (has_documents_) parts.push_back(0);  // no length of windows
  parts.insert(parts.end(), lengths_.begin(), lengths_.end());
  parts.push_back(seed_);
  parts.insert(parts.end(), shares_.begin(), shares_.end());
  for (const auto& source : sources_) parts.insert(parts.end(), {source.stream->hash(), source.begin, source.tokens});
  return hash_bytes(std::as_bytes(std::span(parts)));
}

void Mixture::fill(uint64_t first, size_t batch, int64_t seq, PackedBatch& out) const {
  const auto length = static_cast<size_t>(seq);
  out.resize(batch, length);
  for (size_t row = 0; row < batch; ++row) {
    const Place place = place_of(first + row);
    rows_[place.source].fill(place.window, out.row(row, length));
  }
}

}  // namespace stepc
