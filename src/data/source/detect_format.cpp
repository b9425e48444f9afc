#include "data/source/detect_format.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "data/source/json_field.h"
#include "data/source/lone_surrogates.h"

namespace stepc {

namespace {
std::string_view first_line(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

constexpr const char* kMessages = "messages";

bool is_chat(std::string_view line, std::string& field) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  if (line.size() > kMaxBytes) return false;
  try {
    const auto repaired = without_lone_surrogates(line);
    const Json json = parse_json_line(repaired ? std::string_view(*repaired) : line, "the first line");
    if (!json.is_object()) return false;
    if (!json.contains(field) && json.contains(kMessages)) field = kMessages;
    return json.contains(field) && json[field].is_array();
  } catch (const UserError&) {
    return false;
  }
}

bool is_chat(const ParquetFile& file, std::string& field) {
  using Kind = ParquetFile::ColumnKind;
  if (file.kind_of(field) == Kind::kMissing && file.kind_of(kMessages) != Kind::kMissing) field = kMessages;
  return file.kind_of(field) == Kind::kChat;
}
}  // namespace

DocumentFormat detect_format(const std::filesystem::path& file, const FormatHints& hints) {
  DocumentFormat format;
  format.field = hints.field;
  const FileKind kind = file_kind_of(file);
  if (kind == FileKind::kText) return format;
  const MappedFile content(file);
  const bool is_parquet = kind == FileKind::kParquet;
  if (is_parquet ? is_chat(ParquetFile(file.string(), content.bytes()), format.field)
                 : is_chat(first_line(content.text()), format.field)) {
    USER_CHECK(hints.chat, "{}: its {} are chats, and there is no template for them", file.string(),
               is_parquet ? "rows" : "lines");
    format.chat = hints.chat();
  }
  return format;
}

}  // namespace stepc
