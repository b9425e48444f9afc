// A .jsonl file: once as texts, once as chats.
#include "tests/fuzz/fuzz_documents.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_texts_and_chats([&](const DocumentFormat& format) {
    for_each_document(
        fuzz_text(data, size), FileKind::kJsonl, format, "a.jsonl", [] { return uint64_t{1}; },
        [](const Document& document) {
          for (const auto& [begin, end] : document.learned)
            if (begin >= end || end > document.text.size()) std::abort();
        });
  });
}
