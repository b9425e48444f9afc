// Encodes and decodes for tests/parity/test_tokenizers.py, which compares with the Python packages.
// `tokenizer_parity DIR`:
//   DIR/*/{tokenizer.json or tokenizer.model, texts.json} -> DIR/*/ours.json: {ids, decoded} of the list of texts
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "data/tokenizer.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

void encode_texts(const fs::path& directory) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  const fs::path json = directory / "tokenizer.json";
  const Tokenizer tokenizer = Tokenizer::load(fs::exists(json) ? json : directory / "tokenizer.model");
  Tokenizer::Encoder encoder(tokenizer);
  Json ours = {{"ids", Json::array()}, {"decoded", Json::array()}};
  for (const Json& text : read_json(directory / "texts.json", kMaxBytes)) {
    std::vector<int32_t> ids;
    encoder.encode(text.get_ref<const std::string&>(), ids);
    // Cut wherever that is allowed, it is the same text.
    std::vector<int32_t> of_parts;
    encoder.encode_parts(
        text.get_ref<const std::string&>(),
        [&](std::span<const int32_t> part) { of_parts.insert(of_parts.end(), part.begin(), part.end()); }, {}, 1);
    USER_CHECK(of_parts == ids, "{}: cut into parts, {} has other tokens", directory.string(), shown(text));
    ours["ids"].push_back(ids);
    ours["decoded"].push_back(tokenizer.decode(ids));
  }
  ours["around"] = {tokenizer.prefix(), tokenizer.suffix()};
  write_file_synced(directory / "ours.json", ours.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace
}  // namespace stepc

int main(int argc, char** argv) {
  try {
    for (const auto& entry : std::filesystem::directory_iterator(argc == 2 ? argv[1] : "."))
      if (exists(entry.path() / "texts.json")) stepc::encode_texts(entry.path());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_parity: %s\n", error.what());
    return 1;
  }
}
