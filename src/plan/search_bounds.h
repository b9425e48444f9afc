// What plans of some ways say of others that are not planned: none of those takes less time, or less memory. Internal
// to search().
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "plan/search.h"
#include "plan/search_stages.h"

namespace stepc {

class SearchBounds {
 public:
  SearchBounds(const SearchModel& model, const SearchPins& pins) : model_(model), pins_(pins) {}

  // Of a planned way: how long each stage computes in the forward and the backward pass of a micro-batch. `recomputes`:
  // as much as it needs to fit.
  void add(const Candidate& way, std::vector<double> of_stages, bool recomputes);
  // Of a planned pipeline, as with_all_layers() takes them: what they say of others that differ in the number of
  // stages.
  void add_stages(const Candidate& way, StagesTaken shallow, StagesTaken deep);
  // Of a way that does not fit: the memory that it takes, recomputation included.
  void add_too_large(const Candidate& way, uint64_t bytes) { too_large_.push_back({way, bytes}); }

  // So long each rank of a way computes at least in the passes of a step, on average; waiting does not count.
  [[nodiscard]] double least_compute_seconds(const Candidate& way) const;
  // So long the passes of a step take at least, with the time in which a pipeline fills and drains.
  [[nodiscard]] double least_pass_seconds(const Candidate& way) const;
  // That time, if ranks compute so long on average, or stages as in add().
  [[nodiscard]] double with_waiting(const Candidate& way, double seconds) const;
  [[nodiscard]] double with_waiting(const Candidate& way, const std::vector<double>& of_stages) const;

  // A way that does not fit and holds no more than this one does; nullptr: none is known.
  struct TooLarge {
    Candidate way;
    uint64_t bytes = 0;
  };
  [[nodiscard]] const TooLarge* too_large(const Candidate& way) const;

 private:
  struct Planned {
    Candidate way;
    double compute_seconds = 0, pass_seconds = 0;  // of a step: without waiting, and with it
    bool recomputes = false;
  };
  struct Layered {
    Candidate way;
    StagesTaken shallow, deep;
  };
  [[nodiscard]] int64_t rows_of_rank(const Candidate& way) const;
  [[nodiscard]] double tokens_of_rank(const Candidate& way) const;
  template <typename Of>
  [[nodiscard]] double least(const Candidate& way, const Of& of) const;
  [[nodiscard]] double of_other_depths(const Candidate& way) const;
  [[nodiscard]] bool holds_alike(const Candidate& one, const Candidate& other) const;
  [[nodiscard]] bool computes_alike(const Candidate& one, const Candidate& other) const;
  [[nodiscard]] bool splits_further(const Candidate& one, const Candidate& other) const;
  [[nodiscard]] bool holds_more(const Candidate& one, const Candidate& other) const;

  const SearchModel& model_;
  const SearchPins& pins_;
  std::vector<Planned> planned_;
  std::vector<Layered> layered_;
  // Of ways of which layered_ says something: by pp, cp, tp and micro-batches.
  mutable std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, double> of_other_depths_;
  std::vector<TooLarge> too_large_;
};

}  // namespace stepc
