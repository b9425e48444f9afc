#include "train/command/blame.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"

namespace stepc::train {

namespace {

using End = FlightFile::End;
using Files = std::map<int64_t, FlightFile>;  // by rank

constexpr int64_t kMostShown = 64;  // rows

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return str("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// "step 12, instruction 17 (all_gather over dp_shard), forward of 'model.layers.0'", "step 12, saving"
std::string place_text(const FlightFile& file) {
  const bool is_in_step = file.at == kInStep;
  std::string text = is_in_step || file.step < 0 ? "" : str("step {}, ", file.step);
  text += is_in_step ? str("step {}", file.step) : file.at;
  if (!is_in_step || file.last.empty() || file.last.back().step >= 0) return text;
  const auto& [step, instruction, program, place] = file.last.back();
  text += str(", instruction {}", instruction);
  if (place.op.empty()) return text;
  text += str(" ({}{}{})", place.op, place.group.empty() ? "" : " over ", place.group);
  if (!place.phase.empty()) text += str(", {} of '{}'", place.phase, place.module);
  return text;
}

std::string end_text(const FlightFile& file) {
  switch (file.end) {
    case End::kLost:
      return file.lost.missing.empty()
                 ? file.why
                 : str("waited for {}, {}", ranks_text(file.lost.missing), file.lost.is_late ? "late" : "gone");
    case End::kTold:
      return "was told";
    case End::kFailed:
      return file.why;
    case End::kStuck:
      return str("there for {}", human_seconds(file.stuck_seconds));
  }
  return {};
}

std::vector<int64_t> with_end(const Files& files, End end) {
  std::vector<int64_t> ranks;
  for (const auto& [rank, file] : files)
    if (file.end == end) ranks.push_back(rank);
  return ranks;
}

// Describes the ranks that waited for one of these ranks, and where.
std::string witnesses(const Files& files, const std::vector<int64_t>& of) {
  std::vector<int64_t> ranks;
  const FlightFile* first = nullptr;
  for (const auto& [rank, file] : files) {
    if (std::ranges::none_of(of, [&](int64_t one) { return std::ranges::count(file.lost.missing, one) > 0; })) continue;
    ranks.push_back(rank);
    if (first == nullptr) first = &file;
  }
  if (first == nullptr) return {};
  return str("; {} waited for {} in {} of ranks {}, at {}", ranks_text(ranks), of.size() == 1 ? "it" : "them",
             first->lost.op, fmt::join(first->lost.members, ", "), place_text(*first));
}

std::string sentence_of_failed(const Files& files, const std::vector<int64_t>& failed) {
  std::string text;
  for (const int64_t rank : failed) {
    const FlightFile& file = files.at(rank);
    text +=
        str("{}rank {} on {} failed in {}: {}", text.empty() ? "" : "; ", rank, file.host, place_text(file), file.why);
  }
  return text;
}

// A sentence from the reason that a rank told all others, which begins with its number.
std::string sentence_of_told(const Files& files, const std::vector<int64_t>& told) {
  const FlightFile& file = files.at(told[0]);
  return str("{}: all were told, in {}", file.why, place_text(file));
}

std::string sentence_of_silent(const Files& files, std::vector<int64_t> silent) {
  std::set<int64_t> waited_for;
  for (const auto& [rank, file] : files) waited_for.insert(file.lost.missing.begin(), file.lost.missing.end());
  std::vector<int64_t> named = silent;
  std::erase_if(named, [&](int64_t rank) { return !waited_for.contains(rank); });
  if (!named.empty()) silent = named;
  const bool is_one = silent.size() == 1;
  return str("{} left nothing: {} killed or stopped, or {} gone{}", ranks_text(silent), is_one ? "it was" : "they were",
             is_one ? "its machine is" : "their machines are", witnesses(files, silent));
}

std::string sentence_of_stuck(const Files& files, const std::vector<int64_t>& stuck) {
  std::string text;
  for (const int64_t rank : stuck) {
    const FlightFile& file = files.at(rank);
    text += str("{}rank {} on {} stayed in {} for {}", text.empty() ? "" : "; ", rank, file.host, place_text(file),
                human_seconds(file.stuck_seconds));
  }
  return text + witnesses(files, stuck);
}

// A sentence for the case that every rank lost others and lived to report it.
std::string sentence_of_lost(const Files& files) {
  std::vector<std::pair<uint64_t, int64_t>> reached;
  for (const auto& [rank, file] : files) reached.emplace_back(file.noted, rank);
  std::ranges::sort(reached);
  if (reached.size() > 1 && reached[0].first < reached[1].first) {
    const int64_t rank = reached[0].second;
    return str("rank {} on {} was late: it had come to {}, {} instructions behind the next{}", rank,
               files.at(rank).host, place_text(files.at(rank)), reached[1].first - reached[0].first,
               witnesses(files, {rank}));
  }
  for (const auto& [rank, file] : files)
    if (!file.lost.missing.empty() && files.contains(file.lost.missing[0]))
      return str("no rank was behind: rank {} on {} does not hear rank {} on {}, at {}", rank, file.host,
                 file.lost.missing[0], files.at(file.lost.missing[0]).host, place_text(file));
  return "nobody says whom it waited for";
}

std::string sentence(const Files& files, int64_t ranks) {
  if (const auto failed = with_end(files, End::kFailed); !failed.empty()) return sentence_of_failed(files, failed);
  if (const auto told = with_end(files, End::kTold); !told.empty()) return sentence_of_told(files, told);
  std::vector<int64_t> silent;
  for (int64_t rank = 0; rank < ranks; ++rank)
    if (!files.contains(rank)) silent.push_back(rank);
  const auto stuck = with_end(files, End::kStuck);
  if (!silent.empty() && stuck.empty()) return sentence_of_silent(files, silent);
  if (!stuck.empty()) return sentence_of_stuck(files, stuck);
  return sentence_of_lost(files);
}

}  // namespace

std::string blame(std::vector<FlightFile> all) {
  INTERNAL_CHECK(!all.empty(), "nobody left anything");
  const int64_t ranks = all[0].ranks;
  Files files;
  for (FlightFile& file : all) files.insert_or_assign(file.rank, std::move(file));
  std::string text = str("{}\n\n  {:<6} {:<20} {:<28} {}\n", sentence(files, ranks), "rank", "host", "end", "where");
  for (int64_t rank = 0; rank < std::min(ranks, kMostShown); ++rank) {
    const auto found = files.find(rank);
    if (found == files.end())
      text += str("  {:<6} {:<20} left nothing\n", rank, "?");
    else
      text += str("  {:<6} {:<20} {:<28} {}\n", rank, found->second.host, end_text(found->second),
                  place_text(found->second));
  }
  if (ranks > kMostShown) text += str("  and {} more\n", ranks - kMostShown);
  return text;
}

std::string blame_run(const std::filesystem::path& run) {
  USER_CHECK(std::filesystem::is_directory(run), "{}: not a directory", run.string());
  std::vector<FlightFile> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run / "logs", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".flight.json")) files.push_back(read_flight(entry.path()));
  }
  USER_CHECK(!files.empty(), "{}: no rank of a run there has left its last instructions (logs/rank-0.flight.json)",
             run.string());
  const Attempt newest = std::ranges::max_element(files, {}, [](const FlightFile& file) {
                           return std::pair(file.attempt.began, file.attempt.name);
                         })->attempt;
  std::erase_if(files, [&](const FlightFile& file) { return file.attempt != newest; });
  const int64_t ranks = files[0].ranks;
  for (const FlightFile& file : files)
    USER_CHECK(file.ranks == ranks, "{}: rank {} says that there were {} ranks, and rank {} {}", run.string(),
               files[0].rank, ranks, file.rank, file.ranks);
  return blame(std::move(files));
}

}  // namespace stepc::train
