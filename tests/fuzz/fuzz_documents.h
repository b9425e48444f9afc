// What the fuzz targets of documents share.
#pragma once

#include <memory>

#include "data/source/document.h"
#include "tests/fuzz/fuzz_input.h"

namespace stepc {

// Reads once as texts and once as chats; 1 when both are refused.
template <class Read>
int fuzz_texts_and_chats(const Read& read) {
  static const DocumentFormat kTexts;
  static const DocumentFormat kChats = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("llama3"))};
  const int texts = fuzz_one([&] { read(kTexts); });
  const int chats = fuzz_one([&] { read(kChats); });
  return texts + chats == 2 ? 1 : 0;
}

}  // namespace stepc
