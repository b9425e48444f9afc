// A .jsonl file: once as texts, once as chats.
#include "data/source/document.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const DocumentFormat kTextFormat;
  static const DocumentFormat kChatFormat = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("llama3"))};
  const auto read = [&](const DocumentFormat& format) {
    return fuzz_one([&] {
      for_each_document(
          fuzz_text(data, size), FileKind::kJsonl, format, "a.jsonl", [] { return uint64_t{1}; },
          [](const Document& document) {
            for (const auto& [begin, end] : document.learned)
              if (begin >= end || end > document.text.size()) std::abort();
          });
    });
  };
  const int refused_text = read(kTextFormat);
  return read(kChatFormat) + refused_text == 2 ? 1 : 0;
}
