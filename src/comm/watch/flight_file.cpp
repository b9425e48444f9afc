#include "comm/watch/flight_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"

namespace stepc {

namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 20;
constexpr int64_t kMost = INT64_MAX;
constexpr std::array<std::pair<FlightFile::End, const char*>, 4> kEnds = {{{FlightFile::End::kLost, "lost"},
                                                                           {FlightFile::End::kTold, "told"},
                                                                           {FlightFile::End::kFailed, "failed"},
                                                                           {FlightFile::End::kStuck, "stuck"}}};

FlightFile::End parse_end(const std::string& text, std::string_view what) {
  const auto found = std::ranges::find_if(kEnds, [&](const auto& one) { return one.second == text; });
  USER_CHECK(found != kEnds.end(), "{}: the member \"end\" is {}", what, in_quotes(text));
  return found->first;
}

int64_t int_in(const Json& list, size_t at, int64_t most, std::string_view what) {
  USER_CHECK(at < list.size() && list[at].is_number_integer() && list[at] >= 0 && list[at] <= most,
             "{}: {} has no number from 0 to {} at place {}", what, shown(list), most, at);
  return list[at].get<int64_t>();
}

std::vector<int64_t> ranks_in(const Json& object, const char* key, int64_t ranks, std::string_view what) {
  const Json& list = json_array(object, key, what);
  std::vector<int64_t> found;
  for (size_t i = 0; i < list.size(); ++i) found.push_back(int_in(list, i, ranks - 1, what));
  return found;
}

bool bool_of(const Json& object, const char* key, std::string_view what) {
  const Json& value = json_member(object, key, what);
  USER_CHECK(value.is_boolean(), "{}: the member \"{}\" is {}, and not true or false", what, key, shown(value));
  return value.get<bool>();
}

FlightPlace place_in(const Json& list, std::string_view what) {
  USER_CHECK(list.is_array() && list.size() == 4 && std::ranges::all_of(list, &Json::is_string), "{}: {} is no place",
             what, shown(list));
  return {list[0], list[1], list[2], list[3]};
}

}  // namespace

std::filesystem::path flight_path(const std::filesystem::path& run, int64_t rank) {
  return run / "logs" / str("rank-{}.flight.json", rank);
}

void take_last(FlightFile& file, const Flight& flight) {
  file.at = flight.at();
  file.noted = flight.count();
  for (const Flight::Noted& noted : flight.last()) {
    if (noted.step >= 0) file.step = noted.step;
    file.last.push_back({noted.step, noted.instruction, noted.program, flight.place_of(noted).value_or(FlightPlace())});
  }
}

// {..., "places": [["all_gather", "model.layers.0", "forward", "dp_shard"], ...],
//  "last": [["step", 12], [program, instruction, place], ...]}
std::string to_json(const FlightFile& file) {
  const auto* const end = std::ranges::find(kEnds, file.end, &std::pair<FlightFile::End, const char*>::first);
  using Texts = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<Texts, size_t> known;
  Json places = Json::array(), last = Json::array();
  for (const FlightFile::Entry& entry : file.last) {
    if (entry.step >= 0) {
      last.push_back({"step", entry.step});
      continue;
    }
    const FlightPlace& place = entry.place;
    const auto [at, is_new] = known.try_emplace({place.op, place.module, place.phase, place.group}, known.size());
    if (is_new) places.push_back({place.op, place.module, place.phase, place.group});
    last.push_back({entry.program, entry.instruction, at->second});
  }
  const Json json = {{"rank", file.rank},
                     {"ranks", file.ranks},
                     {"host", file.host},
                     {"began", file.attempt.began},
                     {"attempt", file.attempt.name},
                     {"left_at", file.left_at},
                     {"end", end->second},
                     {"why", file.why},
                     {"at", file.at},
                     {"stuck_seconds", file.stuck_seconds},
                     {"step", file.step},
                     {"noted", file.noted},
                     {"op", file.lost.op},
                     {"members", file.lost.members},
                     {"missing", file.lost.missing},
                     {"is_late", file.lost.is_late},
                     {"places", places},
                     {"last", last}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

FlightFile parse_flight(std::string_view text, std::string_view what) {
  const Json json = parse_json(text, what);
  USER_CHECK(json.is_object(), "{}: no object", what);
  FlightFile file;
  constexpr int64_t kMostRanks = 1 << 20;
  file.ranks = json_int(json, "ranks", what, 1, kMostRanks);
  file.rank = json_int(json, "rank", what, 0, file.ranks - 1);
  file.host = json_string(json, "host", what);
  file.attempt = {json_int(json, "began", what, 0, kMost), json_string(json, "attempt", what)};
  file.left_at = json_int(json, "left_at", what, 0, kMost);
  file.end = parse_end(json_string(json, "end", what), what);
  file.why = json_string(json, "why", what);
  file.at = json_string(json, "at", what);
  const Json& seconds = json_member(json, "stuck_seconds", what);
  USER_CHECK(seconds.is_number() && std::isfinite(seconds.get<double>()),
             "{}: the member \"stuck_seconds\" is {}, and no number", what, shown(seconds));
  file.stuck_seconds = seconds.get<double>();
  file.step = json_int(json, "step", what, -1, kMost);
  file.noted = static_cast<uint64_t>(json_int(json, "noted", what, 0, kMost));
  file.lost = {json_string(json, "op", what), ranks_in(json, "members", file.ranks, what),
               ranks_in(json, "missing", file.ranks, what), bool_of(json, "is_late", what)};
  std::vector<FlightPlace> places;
  for (const Json& place : json_array(json, "places", what)) places.push_back(place_in(place, what));
  for (const Json& entry : json_array(json, "last", what)) {
    USER_CHECK(entry.is_array() && !entry.empty(), "{}: {} is no instruction", what, shown(entry));
    if (entry[0] == "step") {
      file.last.push_back({.step = int_in(entry, 1, kMost, what)});
      continue;
    }
    const auto place = static_cast<size_t>(int_in(entry, 2, kMost, what));
    USER_CHECK(place < places.size(), "{}: {} is no instruction: there are {} places", what, shown(entry),
               places.size());
    file.last.push_back({-1, int_in(entry, 1, UINT32_MAX, what), int_in(entry, 0, UINT32_MAX, what), places[place]});
  }
  return file;
}

FlightFile read_flight(const std::filesystem::path& path) {
  return parse_flight(read_text(path, kMostBytes), path.string());
}

}  // namespace stepc
