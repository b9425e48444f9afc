// A model's config.json: what is taken describes a model whose numbers can be computed with.
#include "models/decoder_config.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_one([&] {
    const auto config = models::DecoderConfig::from_json(fuzz_text(data, size));
    if (config.parameter_count() <= 0 || config.to_json().empty()) std::abort();
  });
}
