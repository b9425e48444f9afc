// Strings by their beginnings: which of the keys does a text begin with?
#pragma once

#include <cstdint>
#include <string_view>

#include "data/tokenize/model/flat_map.h"

namespace stepc {

class ByteTrie {
 public:
  // The key is not empty, the value not negative; of two equal keys the later counts.
  void insert(std::string_view key, int32_t value) {
    int32_t node = 0;
    for (size_t i = 0; i < key.size(); ++i) {
      Node& child = nodes_.get(slot(node, key[i]), {static_cast<int32_t>(nodes_.size()) + 1, -1});
      if (i + 1 == key.size()) child.value = value;
      node = child.index;
    }
  }

  // Calls use(bytes, value) for every key that the text begins with, the shortest first.
  template <class Use>
  void prefixes(std::string_view text, const Use& use) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const Node* child = nodes_.find(slot(node, text[i]));
      if (!child) return;
      node = child->index;
      if (child->value >= 0) use(i + 1, child->value);
    }
  }

 private:
  struct Node {
    int32_t index = 0;
    int32_t value = -1;  // of the key that ends here
  };
  static uint64_t slot(int32_t parent, char byte) {
    return static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 8 | static_cast<uint8_t>(byte);
  }

  FlatMap<Node> nodes_;  // by parent and byte; the root is 0
};

}  // namespace stepc
