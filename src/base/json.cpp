#include "base/json.h"

#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"

namespace stepc {

namespace {
constexpr int kMaxDepth = 32;
constexpr size_t kMaxShown = 80;  // bytes of foreign text in a message

std::string shortened(std::string text) {
  if (text.size() <= kMaxShown) return text;
  size_t end = kMaxShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

// "parse error at line 3, column 7: ..." out of "[json.exception.parse_error.101] parse error at ...".
std::string reason_of(const Json::exception& error) {
  std::string_view text = error.what();
  const size_t bracket = text.find("] ");
  if (bracket != std::string_view::npos) text.remove_prefix(bracket + 2);
  const size_t read = text.find("; last read: ");  // as long as the token that was wrong
  return std::string(text.substr(0, read));
}

// Bounds the depth and refuses keys that come twice; `keep` sees every event then, and says what stays.
template <class Keep>
Json parse_guarded(std::string_view text, std::string_view what, const Keep& keep) {
  std::vector<std::unordered_set<std::string>> keys;  // of every open object
  const auto guard = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        USER_CHECK(depth < kMaxDepth, "{}: JSON nested more than {} deep", what, kMaxDepth);
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        USER_CHECK(keys.back().insert(key).second, "{}: duplicate key {}", what, in_quotes(key));
        break;
      }
      default:
        break;
    }
    return keep(depth, event, parsed);
  };
  try {
    return Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::exception& error) {
    user_error("{}: not valid JSON: {}", what, reason_of(error));
  }
}
}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  return parse_guarded(text, what, [](int, Json::parse_event_t, Json&) { return true; });
}

void parse_json_members(std::string_view text, std::string_view what,
                        const std::function<void(const std::string& name, const Json& value)>& on_member) {
  std::string name;
  const Json rest = parse_guarded(text, what, [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth != 1) return true;
    if (event == Json::parse_event_t::key) name = parsed.get<std::string>();
    const bool is_whole = event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end ||
                          event == Json::parse_event_t::value;
    if (is_whole) on_member(name, parsed);
    return !is_whole;
  });
  USER_CHECK(rest.is_object(), "{}: expected an object, found {}", what, shown(rest));
}

Json read_json(const std::filesystem::path& path, uint64_t max_bytes) {
  return parse_json(read_text(path, max_bytes), path.string());
}

const Json& json_member(const Json& object, const std::string& key, std::string_view what) {
  USER_CHECK(object.is_object(), "{}: expected an object, found {}", what, shown(object));
  const auto found = object.find(key);
  USER_CHECK(found != object.end(), "{}: {} is missing", what, in_quotes(key));
  return *found;
}

const Json& json_object(const Json& object, const std::string& key, std::string_view what) {
  const Json& value = json_member(object, key, what);
  USER_CHECK(value.is_object(), "{}: {} must be an object, found {}", what, in_quotes(key), shown(value));
  return value;
}

const Json& json_array(const Json& object, const std::string& key, std::string_view what) {
  const Json& value = json_member(object, key, what);
  USER_CHECK(value.is_array(), "{}: {} must be a list, found {}", what, in_quotes(key), shown(value));
  return value;
}

const std::string& json_string(const Json& object, const std::string& key, std::string_view what) {
  const Json& value = json_member(object, key, what);
  USER_CHECK(value.is_string(), "{}: {} must be text, found {}", what, in_quotes(key), shown(value));
  return value.get_ref<const std::string&>();
}

int64_t json_int(const Json& object, const std::string& key, std::string_view what, int64_t least, int64_t most) {
  const Json& value = json_member(object, key, what);
  // A number above INT64_MAX is unsigned in the parser and would wrap.
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
  const int64_t number = fits ? value.get<int64_t>() : 0;
  USER_CHECK(fits && number >= least && number <= most, "{}: {} must be a whole number from {} to {}, found {}", what,
             in_quotes(key), least, most, shown(value));
  return number;
}

std::string in_quotes(std::string_view text) {
  return shortened(Json(text.substr(0, kMaxShown + 4)).dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string shown(const Json& value) {
  // Containers are not printed: they may be as large as the file.
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return shortened(value.dump());
}

}  // namespace stepc
