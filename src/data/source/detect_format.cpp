#include "data/source/detect_format.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "data/source/json_field.h"
#include "data/source/lone_surrogates.h"

namespace stepc {

namespace {
constexpr const char* kMessages = "messages";

// Nothing where the line does not say it.
std::optional<bool> line_is_chat(std::string_view line, std::string& field) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  if (line.size() > kMaxBytes) return std::nullopt;
  try {
    const auto repaired = without_lone_surrogates(line);
    const Json json = parse_json_line(repaired ? std::string_view(*repaired) : line, "a line");
    if (!json.is_object()) return std::nullopt;
    if (!json.contains(field) && json.contains(kMessages)) field = kMessages;
    return json.contains(field) ? std::optional(json[field].is_array()) : std::nullopt;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

bool is_chat(std::string_view text, std::string& field) {
  constexpr int kMostLines = 100;
  for (int line = 0; line < kMostLines; ++line) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    const size_t end = std::min(text.find('\n'), text.size());
    if (const auto said = line_is_chat(text.substr(0, end), field)) return *said;
    text.remove_prefix(end);
  }
  return false;
}

bool is_chat(const ParquetFile& file, std::string& field) {
  using Kind = ParquetFile::ColumnKind;
  if (!file.kind_of(field) && file.kind_of(kMessages)) field = kMessages;
  return file.kind_of(field) == Kind::kChat;
}
}  // namespace

DocumentFormat detect_format(const std::filesystem::path& file, const FormatHints& hints) {
  DocumentFormat format;
  format.field = hints.field;
  format.skips_unusable = hints.skips_unusable;
  format.parquet = hints.parquet;
  const FileKind kind = file_kind_of(file);
  if (kind == FileKind::kText) return format;
  const MappedFile content(file);
  const bool is_parquet = kind == FileKind::kParquet;
  if (is_parquet ? is_chat(ParquetFile(file.string(), content.bytes(), readers_of(format)), format.field)
                 : is_chat(content.text(), format.field)) {
    USER_CHECK(hints.chat, "{}: its {} are chats, and there is no template for them", file.string(),
               is_parquet ? "rows" : "lines");
    format.chat = hints.chat();
  }
  return format;
}

}  // namespace stepc
