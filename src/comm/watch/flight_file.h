// FlightFile: what a rank leaves of its last instructions where a run fails, logs/rank-3.flight.json in output.dir. Of
// several attempts of a run the last one that failed stays. `stepc blame` reads those of all ranks (blame.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/flight.h"
#include "comm/ranks.h"

namespace stepc {

// Which start of a run: all its ranks have the same.
struct Attempt {
  int64_t began = 0;  // seconds since 1970, of rank 0
  std::string name;   // of that time and rank 0's process
  bool operator==(const Attempt&) const = default;
};

struct FlightFile {
  enum class End : uint8_t {
    kLost,    // others did not come
    kTold,    // another rank said that it cannot go on
    kFailed,  // of an error of its own
    kStuck,   // it is still where it was
  };
  struct Entry {
    int64_t step = -1;        // the beginning of that step; else an instruction
    int64_t instruction = 0;  // of a program, whose number among the rank's programs
    int64_t program = 0;      // this is
    FlightPlace place = {};
    bool operator==(const Entry&) const = default;
  };

  int64_t rank = 0, ranks = 1;
  std::string host = {};
  Attempt attempt = {};
  int64_t left_at = 0;  // seconds since 1970
  End end = End::kFailed;
  std::string why = {};      // in one line
  std::string at = {};       // "the step", "reading the batch"
  double stuck_seconds = 0;  // there
  int64_t step = -1;         // the last that began
  uint64_t noted = 0;        // instructions in all
  LostIn lost = {};
  std::vector<Entry> last = {};
};

// Where a rank is that takes a step, as Flight::at() has it.
inline constexpr const char* kInStep = "the step";

std::filesystem::path flight_path(const std::filesystem::path& run, int64_t rank);
// All that a Flight tells; `file` has the rest.
void take_last(FlightFile& file, const Flight& flight);

std::string to_json(const FlightFile& file);
// UserError, in one line, for what is no such file; `what` names it.
FlightFile parse_flight(std::string_view text, std::string_view what);
FlightFile read_flight(const std::filesystem::path& path);

}  // namespace stepc
