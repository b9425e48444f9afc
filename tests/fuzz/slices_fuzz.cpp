// A rank's file of slices, beside that of another rank which holds the second half of a tensor `a` of [4, 2] float32:
// what is taken covers every tensor once, and can be read.
#include <vector>

#include "checkpoint/tensor_files.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

// Made once; the input goes beside the other rank's file.
std::filesystem::path directory_of_slices() {
  using namespace stepc;
  const auto directory = fuzz_path("stepc-fuzz-slices");
  std::filesystem::create_directories(directory);
  const std::vector<std::byte> zeros(16);
  write_safetensors(directory / name_of(SliceFile{1, std::string(kModelFiles), 0, 1}),
                    std::vector<TensorView>{{"a", DType::kF32, {2, 2}, zeros}},
                    metadata_of_slices({"a"}, {{{2, 0}, {2, 2}}}, {{4, 2}}, "dp_shard=2"));
  return directory;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const std::filesystem::path directory = directory_of_slices();
  const auto path = directory / name_of(SliceFile{0, std::string(kModelFiles), 0, 1});
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return fuzz_one([&] {
    const TensorFiles files(directory, kModelFiles);
    uint64_t bytes = 0;
    for (const TensorFiles::Tensor& tensor : files.tensors()) {
      std::vector<std::byte> whole(tensor.bytes());
      files.read(tensor, {std::vector<int64_t>(tensor.shape.size()), tensor.shape}, whole);
      bytes += whole.size();
    }
    if (bytes > size + 16) std::abort();
  });
}
