// Reads and writes files of other people's formats for tests/parity/test_formats.py, which makes the inputs with the
// Python packages and compares the outputs. `format_parity DIR`:
//   DIR/*.safetensors                    -> DIR/ours/*.safetensors, read into tensors and written again
//   DIR/byte/                            <- the tokenizer.json and tokenizer_config.json that stepc writes
//   DIR/*/{tokenizer.json, texts.json}   -> DIR/*/ours.json: {ids, decoded} of the list of texts
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/tensors.h"
#include "data/tokenizer.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

void rewrite_safetensors(const fs::path& directory) {
  fs::create_directory(directory / "ours");
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto metadata = SafetensorsReader(entry.path()).metadata();
    save_tensors(directory / "ours" / entry.path().filename(), load_tensors(entry.path()), metadata);
  }
}

void write_byte_tokenizer(const fs::path& directory) {
  fs::create_directory(directory / "byte");
  write_file_synced(directory / "byte/tokenizer.json", make_byte_tokenizer_json());
  write_file_synced(directory / "byte/tokenizer_config.json", make_byte_tokenizer_config_json());
}

void encode_texts(const fs::path& directory) {
  constexpr uint64_t kMaxBytes = 100 << 20;
  const Tokenizer tokenizer = Tokenizer::load(directory / "tokenizer.json");
  Json ours = {{"ids", Json::array()}, {"decoded", Json::array()}};
  for (const Json& text : read_json(directory / "texts.json", kMaxBytes)) {
    const auto ids = tokenizer.encode(text.get<std::string>());
    ours["ids"].push_back(ids);
    ours["decoded"].push_back(tokenizer.decode(ids));
  }
  write_file_synced(directory / "ours.json", ours.dump());
}

}  // namespace
}  // namespace stepc

int main(int argc, char** argv) {
  try {
    const std::filesystem::path directory = argc == 2 ? argv[1] : ".";
    stepc::rewrite_safetensors(directory);
    stepc::write_byte_tokenizer(directory);
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      if (exists(entry.path() / "texts.json")) stepc::encode_texts(entry.path());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "format_parity: %s\n", error.what());
    return 1;
  }
}
