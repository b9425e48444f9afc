// A .jsonl file: once as texts, once as chats.
#include "data/source/document.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  static const DocumentFormat text_format;
  static const DocumentFormat chat_format = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("llama3"))};
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
  const int refused_text = read(text_format);
  return read(chat_format) + refused_text == 2 ? 1 : 0;
}
