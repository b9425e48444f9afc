#include "base/json.h"

#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(Json, RefusesBadText) {
  for (const char* text : {"", "{", "{\"a\":}", "[1,]", "nul", "{\"a\":1} x", "\"\xff\"", "[1e999]", "{1:2}"})
    EXPECT_USER_ERROR(parse_json(text, "f.json"), "f.json: not valid JSON");
  EXPECT_USER_ERROR(parse_json("{\n\"a\": tru }", "f.json"), "line 2");
}

TEST(Json, BoundsDepth) {
  EXPECT_USER_ERROR(parse_json(std::string(1'000'000, '['), "f.json"), "nested more than 32 deep");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_USER_ERROR(parse_json(objects, "f.json"), "nested more than 32 deep");
  EXPECT_NO_THROW(parse_json(std::string(32, '[') + std::string(32, ']'), "f.json"));
}

TEST(Json, RefusesDuplicateKeys) {
  EXPECT_USER_ERROR(parse_json(R"({"a":{"b":1,"b":2}})", "f.json"), "duplicate key \"b\"");
  EXPECT_NO_THROW(parse_json(R"({"a":{"b":1},"b":{"b":2}})", "f.json"));
}

TEST(Json, GivesMembersOneByOne) {
  const auto members = [](const char* text) {
    std::string seen;
    parse_json_members(text, "f.json",
                       [&](const std::string& name, const Json& value) { seen += name + "=" + value.dump() + " "; });
    return seen;
  };
  EXPECT_EQ(members(R"({"a":{"b":{"c":1},"d":[2]},"e":[{"f":3}],"g":4,"h":{}})"),
            R"(a={"b":{"c":1},"d":[2]} e=[{"f":3}] g=4 h={} )");
  EXPECT_EQ(members("{}"), "");
  EXPECT_USER_ERROR(members(R"({"a":1,"a":2})"), "duplicate key \"a\"");
  EXPECT_USER_ERROR(members("{\"a\":1"), "f.json: not valid JSON");
  EXPECT_USER_ERROR(members("3"), "expected an object, found 3");
}

TEST(Json, TypedMembers) {
  const Json json = parse_json(R"({"n":7,"big":18446744073709551615,"x":1.5,"s":"t","l":[],"o":{}})", "f");
  EXPECT_EQ(json_int(json, "n", "f", 0, 7), 7);
  EXPECT_USER_ERROR(json_int(json, "n", "f", 0, 6), "f: \"n\" must be a whole number from 0 to 6, found 7");
  EXPECT_USER_ERROR(json_int(json, "big", "f", INT64_MIN, INT64_MAX), "found 18446744073709551615");
  EXPECT_USER_ERROR(json_int(json, "x", "f", 0, 9), "found 1.5");
  EXPECT_USER_ERROR(json_int(json, "none", "f", 0, 9), "f: \"none\" is missing");
  EXPECT_USER_ERROR(json_string(json, "n", "f"), "\"n\" must be text, found 7");
  EXPECT_USER_ERROR(json_object(json, "l", "f"), "\"l\" must be an object, found a list");
  EXPECT_USER_ERROR(json_array(json, "o", "f"), "\"o\" must be a list, found an object");
  EXPECT_USER_ERROR(json_member(json["n"], "a", "f"), "expected an object, found 7");
}

TEST(Json, ForeignTextFitsIntoOneLine) {
  EXPECT_EQ(in_quotes("a\nb\"\x01"), R"("a\nb\"\u0001")");
  EXPECT_LE(in_quotes(std::string(1'000'000, 'x')).size(), 90U);
  EXPECT_LE(in_quotes(std::string(1'000'000, '\n')).size(), 90U);
  EXPECT_NO_THROW(in_quotes("\xff\xfe"));
}

}  // namespace
}  // namespace stepc
