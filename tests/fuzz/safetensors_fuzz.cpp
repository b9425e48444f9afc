// A safetensors file: what can be opened has all the bytes that its header promises, or refuses.
#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  const auto path = fuzz_file(data, size);
  const int result = fuzz_one([&] {
    const SafetensorsReader reader(path);
    size_t sum = 0;
    for (const TensorInfo& info : reader.tensors()) {
      if (reader.find(info.name) == nullptr) std::abort();
      for (const std::byte byte : reader.bytes(info)) sum += static_cast<size_t>(byte);
    }
    if (sum > 255 * size) std::abort();
  });
  std::filesystem::remove(path);
  return result;
}
