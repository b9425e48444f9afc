// What the lines of a .jsonl file are, as the first one with the field shows, and the rows of a .parquet file, as its
// footer says: texts or chats.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "data/source/document.h"

namespace stepc {

struct FormatHints {
  std::string field = "text";  // that holds the text, or the messages of a chat
  // The template of chats; asked for only where a file has some.
  std::function<std::shared_ptr<const ChatTemplate>()> chat;
  bool skips_unusable = false;                   // as DocumentFormat has it,
  std::shared_ptr<ParquetReaders> parquet = {};  // and this
};

// A list in the field is a chat, and so is one in "messages" where the field is not there. A .jsonl file whose first
// hundred lines say nothing is taken for texts: who reads it names the line.
DocumentFormat detect_format(const std::filesystem::path& file, const FormatHints& hints);

}  // namespace stepc
