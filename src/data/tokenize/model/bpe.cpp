#include "data/tokenize/model/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <tuple>

#include "base/check.h"
#include "base/json.h"

namespace stepc {

namespace {
constexpr size_t kFew = 48;
constexpr uint32_t kNone = UINT32_MAX;

int32_t id_of(const BpeFile& file, const std::string& token, std::string_view what) {
  const auto found = file.vocab.find(token);
  USER_CHECK(found != file.vocab.end(), "{}: model.merges needs the token {}, which model.vocab lacks", what,
             in_quotes(token));
  return found->second;
}

// A token of the word so far, in a list.
struct Symbol {
  int32_t id;
  uint32_t previous, next;
  bool gone = false;
};

struct Candidate {
  int32_t rank;
  uint32_t at;
  int32_t merged;
  bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
};
}  // namespace

Bpe::Bpe(const BpeFile& file, std::string_view what) {
  for (const auto& [left, right] : file.merges) {
    const int32_t left_id = id_of(file, left, what);
    const int32_t right_id = id_of(file, right, what);
    const bool is_new = add_merge(left_id, right_id, id_of(file, left + right, what));
    USER_CHECK(is_new, "{}: model.merges has {} {} twice", what, in_quotes(left), in_quotes(right));
  }
}

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  return merges_.insert(key, {static_cast<int32_t>(merges_.size()), merged});
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  return merges_.find(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right));
}

void Bpe::merge(std::vector<int32_t>& symbols, size_t begin) const {
  const size_t count = symbols.size() - begin;
  if (count < 2 || !has_merges()) return;
  if (count <= kFew) {
    symbols.resize(begin + merge_few(symbols.data() + begin, count));
  } else {
    merge_many(symbols, begin);
  }
}

// A scan for the best pair a merge; for the length of a word that beats keeping a queue.
size_t Bpe::merge_few(int32_t* symbols, size_t count) const {
  static constexpr Merge kNoMerge = {INT32_MAX, 0};
  std::array<Merge, kFew> merges = {};  // of symbols i and i + 1
  const auto look = [&](size_t i) {
    const Merge* merge = find(symbols[i], symbols[i + 1]);
    merges[i] = merge ? *merge : kNoMerge;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == INT32_MAX) break;
    symbols[best] = merges[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[std::min(i + 1, kFew - 1)];
    }
    --count;
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  return count;
}

void Bpe::merge_many(std::vector<int32_t>& ids, size_t begin) const {
  const auto count = static_cast<uint32_t>(ids.size() - begin);
  std::vector<Symbol> symbols(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  for (uint32_t i = 0; i < count; ++i)
    symbols[i] = {ids[begin + i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};

  const auto offer = [&](uint32_t at) {
    if (at == kNone || symbols[at].next == kNone) return;
    const Merge* merge = find(symbols[at].id, symbols[symbols[at].next].id);
    if (merge) queue.push({merge->rank, at, merge->merged});
  };
  for (uint32_t i = 0; i < count; ++i) offer(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.gone || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = find(left.id, right.id);
    if (!merge || merge->rank != best.rank) continue;  // a neighbour changed since it was offered
    left.id = best.merged;
    right.gone = true;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  ids.resize(begin);
  for (const Symbol& symbol : symbols)
    if (!symbol.gone) ids.push_back(symbol.id);
}

}  // namespace stepc
