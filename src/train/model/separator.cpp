#include "train/model/separator.h"

#include <string_view>

#include "base/check.h"
#include "train/model/model_directory.h"

namespace stepc::train {

namespace fs = std::filesystem;

std::string separator_of(const Tokenizer& tokenizer, const std::vector<int64_t>& eos_token_ids) {
  std::string usual = "<|endoftext|>";
  if (tokenizer.added_token(usual)) return usual;
  for (const int64_t id : eos_token_ids) {
    const std::string_view spelling = tokenizer.spelling(static_cast<int32_t>(id));
    if (!spelling.empty() && tokenizer.added_token(spelling) == id) return std::string(spelling);
  }
  return {};
}

std::string separator_of(const Tokenizer& tokenizer, const fs::path& tokenizer_path) {
  const fs::path directory = fs::is_directory(tokenizer_path) ? tokenizer_path : tokenizer_path.parent_path();
  std::vector<int64_t> eos_token_ids;
  try {
    eos_token_ids = read_model_config(directory).eos_token_ids;
  } catch (const UserError&) {
    // The directory has no model, or none that can be trained; its tokenizer is enough.
  }
  return separator_of(tokenizer, eos_token_ids);
}

}  // namespace stepc::train
