#include "train/step/same_tensors.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/ranges.h>

#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/tensors.h"
#include "train/run/same_on_all.h"

namespace stepc::train {

std::string sample_hash(const TensorFiles& files, const TensorFiles::Tensor& tensor) {
  constexpr int64_t kMost = 1024;
  std::string text = str("{} {}", name_of(tensor.dtype), fmt::join(tensor.shape, ","));
  if (tensor.bytes() == 0) return text;
  for (const bool from_end : {false, true}) {
    Box box{std::vector<int64_t>(tensor.shape.size()), tensor.shape};
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      box.sizes[d] = d + 1 < tensor.shape.size() ? 1 : std::min(tensor.shape[d], kMost);
      box.offsets[d] = from_end ? tensor.shape[d] - box.sizes[d] : 0;
    }
    const at::Tensor sample = read_tensor(files, tensor, box);
    text += hash_text(hash_bytes({static_cast<const std::byte*>(sample.const_data_ptr()), sample.nbytes()}));
  }
  return text;
}

void check_same_tensors(Ranks& ranks, const std::string& what, const std::map<std::string, std::string>& hashes) {
  std::string text;
  for (const auto& [name, hash] : hashes) text += str("{} {}\n", name, hash);
  check_same(ranks, what, hash_text(hash_bytes(std::as_bytes(std::span(text)))));
}

}  // namespace stepc::train
