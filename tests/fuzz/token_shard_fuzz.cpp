// A token shard: what can be opened gives tokens of its vocabulary, or refuses.
#include "data/shard/token_stream.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  const auto path = fuzz_file(data, size);
  const int result = fuzz_one([&] {
    const TokenStream stream({path});
    for (uint64_t begin = 0; begin + 1 < stream.size(); begin += 7) {
      const size_t seq = std::min<uint64_t>(16, stream.size() - begin - 1);
      std::vector<int64_t> values(4 * seq);
      const std::span<int64_t> all(values);
      stream.fill(begin, {all.first(seq), all.subspan(seq, seq), all.subspan(2 * seq, seq), all.last(seq)});
      for (const int64_t token : all.first(seq))
        if (token < 0 || static_cast<uint64_t>(token) >= stream.vocab_size()) std::abort();
    }
    stream.verify();
  });
  std::filesystem::remove(path);
  return result;
}
