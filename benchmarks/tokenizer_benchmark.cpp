// Times the tokenizer for tokenizer_benchmark.py: `tokenizer_benchmark TOKENIZER.json TEXT [ROUNDS]` encodes the text
// on one thread, each time with a fresh memory of words, and prints a JSON line: the seconds of every round, the number
// of tokens and the hash of their ids.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokenizer.h"

int main(int argc, char** argv) {
  using namespace stepc;
  if (argc < 3) {
    std::fputs("usage: tokenizer_benchmark TOKENIZER.json TEXT [ROUNDS]\n", stderr);
    return 2;
  }
  try {
    const Tokenizer tokenizer = Tokenizer::load(argv[1]);
    const MappedFile text(argv[2]);
    const int rounds = argc > 3 ? std::stoi(argv[3]) : 3;
    Json result = {{"seconds", Json::array()}};
    for (int round = 0; round < rounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<int32_t> ids = tokenizer.encode(text.text());
      result["seconds"].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      result["tokens"] = ids.size();
      result["hash"] = hash_text(hash_bytes(std::as_bytes(std::span(ids))));
    }
    std::puts(result.dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_benchmark: %s\n", error.what());
    return 1;
  }
}
