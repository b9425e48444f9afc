// FlightFile: a rank's last instructions, written when a run fails, as logs/rank-3.flight.json in output.dir. The file
// of the last failed attempt stays. `stepc blame` reads those of all ranks (blame.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/flight.h"
#include "comm/ranks.h"

namespace stepc {

// One start of a run: all its ranks have the same attempt.
struct Attempt {
  int64_t began = 0;  // seconds since 1970, of rank 0
  std::string name;   // of that time and rank 0's process
  bool operator==(const Attempt&) const = default;
};

struct FlightFile {
  enum class End : uint8_t {
    kLost,    // others did not come
    kTold,    // another rank said that it cannot continue
    kFailed,  // by an error of its own
    kStuck,   // it has not moved
  };
  struct Entry {
    int64_t step = -1;        // the beginning of that step; otherwise an instruction
    int64_t instruction = 0;  // its number in the program
    int64_t program = 0;      // the program's number among the rank's programs
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
  double stuck_seconds = 0;  // at that place
  int64_t step = -1;         // the last one that began
  uint64_t noted = 0;        // instructions in all
  LostIn lost = {};
  std::vector<Entry> last = {};
};

// Flight::at() of a rank that runs a step.
inline constexpr const char* kInStep = "the step";

std::filesystem::path flight_path(const std::filesystem::path& run, int64_t rank);
// Fills in everything that a Flight knows; the caller fills in the rest.
void take_last(FlightFile& file, const Flight& flight);

std::string to_json(const FlightFile& file);
// Throws UserError, in one line, for text that is no such file; `what` names it.
FlightFile parse_flight(std::string_view text, std::string_view what);
FlightFile read_flight(const std::filesystem::path& path);

}  // namespace stepc
