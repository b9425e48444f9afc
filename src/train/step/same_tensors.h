// Whether all ranks read the same tensors: each reads files of its own machine, perhaps, and parts of them alone.
#pragma once

#include <map>
#include <string>

#include "checkpoint/tensor_files.h"
#include "comm/ranks.h"

namespace stepc::train {

// Of a tensor in files, from its first and its last elements: files of other weights differ everywhere.
std::string sample_hash(const TensorFiles& files, const TensorFiles::Tensor& tensor);

// `hashes`: those, by name. UserError on all ranks that names `what` and the rank where they differ.
void check_same_tensors(Ranks& ranks, const std::string& what, const std::map<std::string, std::string>& hashes);

}  // namespace stepc::train
