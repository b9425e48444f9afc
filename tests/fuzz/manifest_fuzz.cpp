// The manifest of a checkpoint: whatever is taken names plain files and reads back as it was written.
#include "checkpoint/manifest.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  const auto directory = fuzz_path("stepc-fuzz-directory");
  std::filesystem::create_directory(directory);
  std::filesystem::rename(fuzz_file(data, size), directory / kManifestName);
  const int result = fuzz_one([&] {
    const Manifest manifest = read_manifest(directory);
    for (const auto& [name, file] : manifest.files)
      if (name.find('/') != std::string::npos) std::abort();
  });
  std::filesystem::remove_all(directory);
  return result;
}
