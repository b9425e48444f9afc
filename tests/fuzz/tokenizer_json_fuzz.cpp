// A tokenizer.json, and a text encoded with what was read.
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_one([&] {
    const Tokenizer tokenizer(parse_tokenizer_json(fuzz_text(data, size), "tokenizer.json"), "tokenizer.json");
    const auto ids = tokenizer.encode("The 'first' test, naïve:  12345\n\n<|endoftext|> \xFF 中文 e\u0301");
    for (const int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    (void)tokenizer.decode(ids);
  });
}
