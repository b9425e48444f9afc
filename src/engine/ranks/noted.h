// noted(): reports to the watchdog what the rank of a person's own program does together with the others.
#pragma once

#include "comm/ranks.h"
#include "comm/watch/watchdog.h"

namespace stepc {

// Where a rank is whenever it is in no such call.
inline constexpr const char* kInOwnCode = "the program's own code";

// Does it; `what` outlives everything. A rank that loses others there, or is told that one cannot go on, leaves its
// flight. An error of its own may be caught by the program: that is left where it ends the process (leave_and_tell()).
template <class Work>
auto noted(Ranks& ranks, const char* what, const Work& work) {
  struct Place {
    Place(Flight& of, const char* at) : flight(of) { flight.enter(at, /*is_brief=*/false); }
    ~Place() { flight.enter(kInOwnCode, /*is_brief=*/false); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    Flight& flight;
  };
  const Place place(ranks.flight(), what);
  Watchdog* const watchdog = ranks.watchdog();
  if (watchdog == nullptr) return work();
  try {
    return watchdog->noting_lost_ranks(work);
  } catch (const RankFailed& error) {
    watchdog->leave(FlightFile::End::kTold, error.what());
    throw;
  }
}

// This rank ends by an error of its own: leaves its flight, and tells the others in the next call that they make
// together.
inline void leave_and_tell(Ranks& ranks, const std::string& why) noexcept {
  if (Watchdog* const watchdog = ranks.watchdog()) watchdog->leave(FlightFile::End::kFailed, why);
  ranks.tell(why);
}

}  // namespace stepc
