// JSON from outside: parsed with a bound on depth, without duplicate keys, and read member by member, so that whatever
// is wrong becomes a UserError of one line that names the file and the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace stepc {

using Json = nlohmann::json;

// `what` names the text in errors, usually the file's path.
Json parse_json(std::string_view text, std::string_view what);
// Gives the members of an object one by one and keeps none of them: for objects that may have very many.
void parse_json_members(std::string_view text, std::string_view what,
                        const std::function<void(const std::string& name, const Json& value)>& on_member);
Json read_json(const std::filesystem::path& path, uint64_t max_bytes);

// Members of an object, which must be there and have the type; `what` names the object in errors. Integers must lie in
// [least, most].
const Json& json_member(const Json& object, const std::string& key, std::string_view what);
const Json& json_object(const Json& object, const std::string& key, std::string_view what);
const Json& json_array(const Json& object, const std::string& key, std::string_view what);
const std::string& json_string(const Json& object, const std::string& key, std::string_view what);
int64_t json_int(const Json& object, const std::string& key, std::string_view what, int64_t least, int64_t most);

// Text from outside made fit for an error message: in quotes, control characters escaped, shortened.
std::string in_quotes(std::string_view text);
// The same for a JSON value.
std::string shown(const Json& value);

}  // namespace stepc
