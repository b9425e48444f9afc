// A run.toml: what is taken reads back as the same config from its own text.
#include "base/files.h"
#include "tests/fuzz/fuzz_input.h"
#include "train/config/run_config.h"
#include "train/config/run_config_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  const auto path = fuzz_file(data, size);
  const int result = fuzz_one([&] {
    const std::string text = train::to_toml(train::load_run_config(path.string(), {}));
    if (fuzz_file(reinterpret_cast<const uint8_t*>(text.data()), text.size()) != path) std::abort();
    if (train::to_toml(train::load_run_config(path.string(), {})) != text) std::abort();
  });
  std::filesystem::remove(path);
  return result;
}
