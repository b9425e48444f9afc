// A Parquet file: once as texts, once as chats.
#include "tests/fuzz/fuzz_documents.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_texts_and_chats([&](const DocumentFormat& format) {
    const ParquetFile file("a.parquet", std::as_bytes(std::span(data, size)));
    if (file.footer().empty() || file.footer().size() > size) std::abort();
    for_each_document(file, 0, size, format, [](const Document&) {});
  });
}
