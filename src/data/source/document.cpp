#include "data/source/document.h"

#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/hash.h"
#include "data/source/json_field.h"
#include "data/source/lone_surrogates.h"

namespace stepc {

namespace {
constexpr size_t kMaxLineBytes = size_t{256} << 20;

// A document that owns its text.
struct OwnDocument {
  std::string text;
  bool is_chat = false;
  std::vector<std::pair<size_t, size_t>> learned = {};

  void give(const std::function<void(const Document&)>& use) {
    if (is_chat || !text.empty()) use({text, is_chat, std::move(learned)});
  }
};

OwnDocument chat_of(const Json& messages, const ChatTemplate& chat_template, const std::string& what) {
  try {
    RenderedChat chat = chat_template.render_for_training(messages);
    return {std::move(chat.text), true, std::move(chat.learned)};
  } catch (const UserError& error) {
    user_error("{}: {}", what, error.what());
  }
}

OwnDocument document_of_line(std::string_view line, const DocumentFormat& format, const std::string& what) {
  if (!format.chat) return {json_text_field(line, format.field, what)};
  const Json json = parse_json_line(line, what);
  return chat_of(json_array(json, format.field, what), *format.chat, what);
}

OwnDocument document_of_row(const Json& value, const DocumentFormat& format, const std::string& what) {
  if (!format.chat) {
    USER_CHECK(value.is_string(), "{}: {} must be text, found {}", what, in_quotes(format.field), shown(value));
    return {value.get<std::string>()};
  }
  USER_CHECK(value.is_array(), "{}: {} must be a list, found {}", what, in_quotes(format.field), shown(value));
  return chat_of(value, *format.chat, what);
}

// What `read` makes; nothing where that is skipped. `named`: the message with the place in it.
template <class Read, class Named>
std::optional<OwnDocument> usable(const DocumentFormat& format, TextFaults& faults, const Read& read,
                                  const Named& named) {
  try {
    return read();
  } catch (const UserError& error) {
    const std::string said = named(std::string_view(error.what()));
    if (!format.skips_unusable) throw UnusableDocument(said);
    if (faults.skipped++ == 0) faults.first_skipped = said;
    return std::nullopt;
  }
}
}  // namespace

void TextFaults::add(const TextFaults& later) {
  repaired += later.repaired;
  if (skipped == 0) first_skipped = later.first_skipped;
  skipped += later.skipped;
}

uint64_t DocumentFormat::hash() const {
  std::vector<uint64_t> parts = {hash_bytes(std::as_bytes(std::span(field))), chat ? chat->hash() : 0};
  if (skips_unusable) parts.push_back(1);
  return hash_bytes(std::as_bytes(std::span(parts)));
}

std::shared_ptr<ParquetReaders> readers_of(const DocumentFormat& format) {
  return format.parquet ? format.parquet : std::make_shared<ParquetReaders>(std::vector<std::string>{"python3"});
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

TextFaults for_each_document(std::string_view part, FileKind kind, const DocumentFormat& format,
                             const std::string& name, const std::function<uint64_t()>& first_line,
                             const std::function<void(const Document&)>& use) {
  TextFaults faults;
  if (kind == FileKind::kText) {
    USER_CHECK(!format.chat, "{}: chat messages are read from .jsonl and .parquet files only", name);
    if (!part.empty()) use({part, false, {}});
    return faults;
  }
  uint64_t line_in_part = 0;
  for (size_t at = 0; at < part.size(); ++line_in_part) {
    const size_t end = std::min(part.find('\n', at), part.size());
    const std::string_view line = trim(part.substr(at, end - at));
    at = end + 1;
    if (line.empty()) continue;
    const auto read = [&] {
      USER_CHECK(line.size() <= kMaxLineBytes, "{}: a line of {}, at most {} are read", name, human_bytes(line.size()),
                 human_bytes(kMaxLineBytes));
      const auto repaired = without_lone_surrogates(line);
      if (repaired) ++faults.repaired;
      return document_of_line(repaired ? std::string_view(*repaired) : line, format, name);
    };
    const auto named = [&](std::string_view said) {
      const std::string_view rest = said.starts_with(name) ? said.substr(name.size()) : said;
      return str("{}:{}{}", name, first_line() + line_in_part, rest);
    };
    if (auto document = usable(format, faults, read, named)) document->give(use);
  }
  return faults;
}

TextFaults for_each_document(const ParquetFile& file, uint64_t begin, uint64_t end, const DocumentFormat& format,
                             const std::function<void(const Document&)>& use) {
  TextFaults faults;
  file.for_each_value(format.field, begin, end, [&](uint64_t row, const Json& value) {
    const auto read = [&] { return document_of_row(value, format, str("{}: row {}", file.name(), row)); };
    const auto named = [](std::string_view said) { return std::string(said); };
    if (auto document = usable(format, faults, read, named)) document->give(use);
  });
  return faults;
}

}  // namespace stepc
