// A Parquet file: once as texts, once as chats.
#include "data/source/document.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const DocumentFormat kTextFormat;
  static const DocumentFormat kChatFormat = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("llama3"))};
  const auto read = [&](const DocumentFormat& format) {
    return fuzz_one([&] {
      const ParquetFile file("a.parquet", std::as_bytes(std::span(data, size)));
      if (file.footer().empty() || file.footer().size() > size) std::abort();
      for_each_document(file, 0, size, format, [](const Document&) {});
    });
  };
  const int refused_text = read(kTextFormat);
  return read(kChatFormat) + refused_text == 2 ? 1 : 0;
}
