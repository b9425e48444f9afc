#include "data/source/document.h"

#include <array>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/hash.h"
#include "data/source/json_field.h"
#include "data/source/lone_surrogates.h"

namespace stepc {

namespace {
constexpr size_t kMaxLineBytes = size_t{256} << 20;

void use_text(std::string_view text, const std::function<void(const Document&)>& use) {
  if (!text.empty()) use({text, false, {}});
}

void use_chat(const Json& messages, const ChatTemplate& chat_template, const std::string& what,
              const std::function<void(const Document&)>& use) {
  RenderedChat chat;
  try {
    chat = chat_template.render_for_training(messages);
  } catch (const UserError& error) {
    const std::string_view said = error.what();
    if (said.starts_with(what)) throw;
    user_error("{}: {}", what, said);
  }
  use({chat.text, true, std::move(chat.learned)});
}

void use_line(std::string_view line, const DocumentFormat& format, const std::string& what,
              const std::function<void(const Document&)>& use) {
  USER_CHECK(line.size() <= kMaxLineBytes, "{}: a line of {}, at most {} are read", what, human_bytes(line.size()),
             human_bytes(kMaxLineBytes));
  if (!format.chat) return use_text(json_text_field(line, format.field, what), use);
  const Json json = parse_json_line(line, what);
  use_chat(json_array(json, format.field, what), *format.chat, what, use);
}
}  // namespace

uint64_t DocumentFormat::hash() const {
  const std::array<uint64_t, 2> parts = {hash_bytes(std::as_bytes(std::span(field))), chat ? chat->hash() : 0};
  return hash_bytes(std::as_bytes(std::span(parts)));
}

FileKind file_kind_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".jsonl" || ending == ".ndjson") return FileKind::kJsonl;
  if (ending == ".parquet") return FileKind::kParquet;
  USER_CHECK(ending != ".arrow", "{}: Arrow files are not read; convert it to .parquet or .jsonl", path.string());
  USER_CHECK(ending != ".gz" && ending != ".zst" && ending != ".xz" && ending != ".zip",
             "{}: compressed files are not read; unpack it first", path.string());
  USER_CHECK(ending != ".json", "{}: one JSON value a file is not read; write one a line into a .jsonl", path.string());
  return FileKind::kText;
}

uint64_t for_each_document(std::string_view part, FileKind kind, const DocumentFormat& format, const std::string& name,
                           const std::function<uint64_t()>& first_line,
                           const std::function<void(const Document&)>& use) {
  if (kind == FileKind::kText) {
    USER_CHECK(!format.chat, "{}: chat messages are read from .jsonl and .parquet files only", name);
    if (!part.empty()) use({part, false, {}});
    return 0;
  }
  uint64_t repaired_lines = 0;
  uint64_t line_in_part = 0;
  for (size_t at = 0; at < part.size(); ++line_in_part) {
    const size_t end = std::min(part.find('\n', at), part.size());
    const std::string_view line = trim(part.substr(at, end - at));
    at = end + 1;
    if (line.empty()) continue;
    const auto repaired = without_lone_surrogates(line);
    if (repaired) ++repaired_lines;
    try {
      use_line(repaired ? std::string_view(*repaired) : line, format, name, use);
    } catch (const UserError& error) {
      const std::string_view said = error.what();
      if (!said.starts_with(name)) throw;
      user_error("{}:{}{}", name, first_line() + line_in_part, said.substr(name.size()));
    }
  }
  return repaired_lines;
}

void for_each_document(const ParquetFile& file, uint64_t begin, uint64_t end, const DocumentFormat& format,
                       const std::function<void(const Document&)>& use) {
  const auto what = [&](uint64_t row) { return str("{}: row {}", file.name(), row); };
  file.for_each_value(format.field, begin, end, [&](uint64_t row, const Json& value) {
    if (format.chat) {
      USER_CHECK(value.is_array(), "{}: {} must be a list, found {}", what(row), in_quotes(format.field), shown(value));
      use_chat(value, *format.chat, what(row), use);
    } else {
      USER_CHECK(value.is_string(), "{}: {} must be text, found {}", what(row), in_quotes(format.field), shown(value));
      use_text(value.get_ref<const std::string&>(), use);
    }
  });
}

}  // namespace stepc
