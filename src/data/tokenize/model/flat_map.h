// A hash table from 64-bit keys to small values: one array, linear probing, half full at most; nothing is removed.
// The key of all ones is reserved.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace stepc {

template <class Value>
class FlatMap {
 public:
  // False, and nothing is changed, if the key is there.
  bool insert(uint64_t key, Value value) {
    const size_t before = size_;
    get(key, std::move(value));
    return size_ > before;
  }

  // The key's value, which is `otherwise` from now on if it had none. Good until the next insertion.
  Value& get(uint64_t key, Value otherwise) {
    if (size_ * 2 >= slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    if (slot.key != key) {
      slot = {key, std::move(otherwise)};
      ++size_;
    }
    return slot.value;
  }

  [[nodiscard]] const Value* find(uint64_t key) const {
    if (size_ == 0) return nullptr;
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

  [[nodiscard]] size_t size() const { return size_; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Value value = {};
  };

  // The slot of the key, or the free one where it would be.
  [[nodiscard]] size_t slot_of(uint64_t key) const {
    const uint64_t product = (key ^ key >> 32) * 0x9E3779B97F4A7C15;
    size_t slot = (product ^ product >> 29) & (slots_.size() - 1);
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old)
      if (slot.key != kFree) slots_[slot_of(slot.key)] = std::move(slot);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace stepc
