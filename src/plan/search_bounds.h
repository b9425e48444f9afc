// What plans of some ways say of others that are not planned: none of those takes less time, or less memory. Internal
// to search().
#pragma once

#include <cstdint>
#include <vector>

#include "plan/search.h"

namespace stepc {

class SearchBounds {
 public:
  SearchBounds(const SearchModel& model, const SearchPins& pins) : model_(model), pins_(pins) {}

  // Of a planned way: how long each rank computes in the forward and backward passes of a step, on average; waiting for
  // other stages does not count. `recomputes`: as much as it needs to fit.
  void add(const Candidate& way, double seconds, bool recomputes);
  // Of a way that does not fit: the memory that it takes, recomputation included.
  void add_too_large(const Candidate& way, uint64_t bytes) { too_large_.push_back({way, bytes}); }

  // So long each rank of a way computes at least, as in add().
  [[nodiscard]] double least_compute_seconds(const Candidate& way) const;
  // What the passes of a step take, if ranks compute so long: with the time in which a pipeline fills and drains.
  [[nodiscard]] double with_waiting(const Candidate& way, double seconds) const;

  // A way that does not fit and holds no more than this one does; nullptr: none is known.
  struct TooLarge {
    Candidate way;
    uint64_t bytes = 0;
  };
  [[nodiscard]] const TooLarge* too_large(const Candidate& way) const;

 private:
  struct Planned {
    Candidate way;
    double seconds = 0;
    bool recomputes = false;
  };
  [[nodiscard]] int64_t rows_of_rank(const Candidate& way) const;
  [[nodiscard]] double tokens_of_rank(const Candidate& way) const;
  [[nodiscard]] bool computes_alike(const Candidate& one, const Candidate& other) const;
  [[nodiscard]] bool splits_further(const Candidate& one, const Candidate& other) const;
  [[nodiscard]] bool holds_more(const Candidate& one, const Candidate& other) const;

  const SearchModel& model_;
  const SearchPins& pins_;
  std::vector<Planned> planned_;
  std::vector<TooLarge> too_large_;
};

}  // namespace stepc
