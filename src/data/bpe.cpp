#include "data/bpe.h"

#include <queue>
#include <tuple>

namespace stepc {

namespace {
uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr size_t kNone = SIZE_MAX;

// A token of the word so far; merged-away ones have id -1.
struct Symbol {
  int32_t id;
  size_t previous, next;
};

struct Candidate {
  int32_t rank;
  size_t at;
  int32_t merged;
  bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
};
}  // namespace

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  return merges_.emplace(key_of(left, right), Merge{static_cast<int32_t>(merges_.size()), merged}).second;
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  for (size_t i = 0; i < word.size(); ++i)
    symbols[i] = {byte_id(word[i]), i == 0 ? kNone : i - 1, i + 1 == word.size() ? kNone : i + 1};

  const auto offer = [&](size_t at) {
    if (at == kNone || symbols[at].next == kNone) return;
    const Merge* merge = find(symbols[at].id, symbols[symbols[at].next].id);
    if (merge) queue.push({merge->rank, at, merge->merged});
  };
  for (size_t i = 0; i < word.size(); ++i) offer(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.id < 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = find(left.id, right.id);
    if (!merge || merge->rank != best.rank) continue;  // a neighbour changed since it was offered
    left.id = best.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.id >= 0) ids.push_back(symbol.id);
}

}  // namespace stepc
