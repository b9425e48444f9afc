#include "comm/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/exchanges.h"
#include "comm/meeting.h"
#include "comm/watch/watchdog.h"

namespace stepc {

namespace {
std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}
}  // namespace

Ranks::Ranks(std::unique_ptr<Meeting> meeting)
    : meeting_(std::move(meeting)),
      flight_(std::make_shared<Flight>()),
      members_(first_numbers(meeting_->ranks())),
      own_(meeting_->rank()),
      groups_(std::make_shared<Groups>()) {}
Ranks::Ranks(std::shared_ptr<Meeting> meeting, std::shared_ptr<Flight> flight, std::shared_ptr<Groups> groups,
             std::vector<int64_t> members)
    : meeting_(std::move(meeting)),
      flight_(std::move(flight)),
      members_(std::move(members)),
      groups_(std::move(groups)) {
  const auto own = std::ranges::find(members_, meeting_->rank());
  INTERNAL_CHECK(own != members_.end(), "rank {} is none of its part", meeting_->rank());
  own_ = own - members_.begin();
}
Ranks::~Ranks() = default;

std::shared_ptr<Ranks> Ranks::part(const std::vector<int64_t>& members) const {
  std::vector<int64_t> in_run;
  for (const int64_t member : members) in_run.push_back(members_.at(static_cast<size_t>(member)));
  return std::shared_ptr<Ranks>(new Ranks(meeting_, flight_, groups_, std::move(in_run)));
}

std::vector<std::shared_ptr<Ranks>> Ranks::threads(int64_t ranks, std::chrono::milliseconds timeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Ranks>> all;
  for (int64_t rank = 0; rank < ranks; ++rank)
    all.push_back(std::make_shared<Ranks>(std::make_unique<Meeting>(rank, ranks, store, "127.0.0.1", timeout)));
  return all;
}

int64_t Ranks::rank() const { return own_; }
int64_t Ranks::ranks() const { return std::ssize(members_); }
int64_t Ranks::rank_in_run() const { return meeting_->rank(); }
int64_t Ranks::round() const { return meeting_->round(); }

// A part of the run and the whole may have groups of the same ranks, whose calls come in an order of their own.
RankGroup& Ranks::among(const std::vector<int64_t>& members, bool for_messages) {
  std::vector<int64_t> in_run;
  for (const int64_t member : members) in_run.push_back(members_.at(static_cast<size_t>(member)));
  std::string name;
  if (std::ssize(members_) < meeting_->ranks()) name = str(" of {}", fmt::join(members_, ", "));
  if (for_messages) name += ", messages";
  const auto known = groups_->find({in_run, name});
  if (known != groups_->end()) return known->second;
  auto peers = meeting_->connect(in_run, name);
  return groups_->emplace(std::pair(in_run, name), RankGroup(std::move(peers))).first->second;
}

RankGroup& Ranks::along(const Mesh& mesh, const std::vector<Axis>& axes) {
  INTERNAL_CHECK_EQ(mesh.ranks(), ranks(), "the mesh {} on the ranks of this run", to_text(mesh));
  return among(group_of(mesh, axes, rank()));
}

RankGroup& Ranks::all() { return among(first_numbers(ranks())); }

std::unique_ptr<RankGroup> Ranks::apart(const std::string& name) const {
  return std::make_unique<RankGroup>(meeting_->connect(members_, str(", {}", name)));
}

// Every such call begins with a number of each rank. One below 0 is of a rank that cannot go on, and says how long its
// reason is, which follows.
std::vector<int64_t> Ranks::numbers(int64_t mine, const std::string* failure) {
  INTERNAL_CHECK_LE(0, mine);
  for (const auto& [name, group] : *groups_) group.check();
  int64_t word = failure == nullptr ? mine : -1 - std::ssize(*failure);
  std::vector<int64_t> given(static_cast<size_t>(ranks()));
  // Nothing is allocated for them: within a step that would be none of its plan's.
  all().all_gather(at::from_blob(&word, {1}, at::kLong), at::from_blob(given.data(), {ranks()}, at::kLong));
  const auto has_failed = [](int64_t of) { return of < 0; };
  const auto first = std::ranges::find_if(given, has_failed);
  if (first == given.end()) return given;
  std::vector<int64_t> sizes;
  for (const int64_t of : given) sizes.push_back(has_failed(of) ? -1 - of : 0);
  const std::vector<std::string> said = texts(failure == nullptr ? std::string() : *failure, sizes);
  const std::string& why = said[static_cast<size_t>(first - given.begin())];
  if (std::ranges::all_of(given, has_failed) && std::ranges::count(said, why) == ranks()) throw RankFailed(why);
  throw RankFailed(str("rank {}: {}", first - given.begin(), why));
}

std::vector<std::string> Ranks::texts(const std::string& mine, const std::vector<int64_t>& size_of) {
  const int64_t longest = std::ranges::max(size_of);
  const at::Tensor own = at::zeros({longest}, at::kByte), all_of = at::empty({ranks(), longest}, at::kByte);
  std::ranges::copy(mine, own.mutable_data_ptr<uint8_t>());
  all().all_gather(own, all_of);
  std::vector<std::string> result;
  for (int64_t k = 0; k < ranks(); ++k)
    result.emplace_back(static_cast<const char*>(all_of.const_data_ptr()) + k * longest,
                        static_cast<size_t>(size_of[static_cast<size_t>(k)]));
  return result;
}

std::vector<std::string> Ranks::exchange(const std::string& mine) { return texts(mine, numbers(std::ssize(mine))); }

std::vector<int64_t> Ranks::each(int64_t mine) { return numbers(mine); }

int64_t Ranks::largest(int64_t mine) { return std::ranges::max(numbers(mine)); }

void Ranks::barrier() { largest(0); }

void Ranks::fail(const std::string& why) {
  numbers(0, &why);
  INTERNAL_CHECK(false, "a failure that nobody was told of");
}

void Ranks::tell(const std::string& why) noexcept {
  try {
    fail(why);
  } catch (const std::exception&) {  // they know, or are gone
  }
}

void Ranks::watch(const std::filesystem::path& run, double stall_seconds) {
  watchdog_.reset();
  watchdog_ = std::make_unique<Watchdog>(*this, run, begin_attempt(*this), stall_seconds);
}

void Ranks::stop_listening() { meeting_->stop_listening(); }

Traffic Ranks::traffic() const {
  Traffic sum;
  for (const auto& [name, group] : *groups_) {
    sum.seconds += group.traffic().seconds;
    sum.sent_bytes += group.traffic().sent_bytes;
  }
  return sum;
}

}  // namespace stepc
