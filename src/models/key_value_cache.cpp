#include "models/key_value_cache.h"

#include <algorithm>

namespace stepc::models {

std::pair<at::Tensor, at::Tensor> LayerCache::extend(const at::Tensor& keys, const at::Tensor& values) {
  constexpr int64_t kSequence = 2;
  const int64_t end = length_ + keys.size(kSequence);
  const int64_t room = keys_.defined() ? keys_.size(kSequence) : 0;
  const auto put = [&](at::Tensor& held, const at::Tensor& more) {
    if (end > room) {
      // Twice the room, so that a text is copied about once however long it becomes.
      std::vector<int64_t> sizes = more.sizes().vec();
      sizes[kSequence] = std::max(end, 2 * room);
      const at::Tensor grown = at::empty(sizes, more.options());
      if (length_ > 0) grown.narrow(kSequence, 0, length_).copy_(held.narrow(kSequence, 0, length_));
      held = grown;
    }
    held.narrow(kSequence, length_, end - length_).copy_(more);
    return held.narrow(kSequence, 0, end);
  };
  std::pair<at::Tensor, at::Tensor> all = {put(keys_, keys), put(values_, values)};
  length_ = end;
  return all;
}

}  // namespace stepc::models
