#include "train/run/run_snapshots.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "ir/mesh.h"

namespace stepc::train {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMostBootText = 128;
constexpr int64_t kMostRank = INT32_MAX;

// The same for processes that see the same files in it, on one machine.
std::string place_of(const fs::path& memory) {
  struct stat found {};
  USER_CHECK(::stat(memory.c_str(), &found) == 0,
             "snapshots: there is no directory {}: give one in memory as STEPC_SNAPSHOT_DIR", memory.string());
  std::error_code ignored;
  const fs::path boot = "/proc/sys/kernel/random/boot_id";
  const std::string machine = fs::exists(boot, ignored) ? first_line(read_text(boot, kMostBootText)) : std::string();
  return str("{} {} {}", machine, found.st_dev, found.st_ino);
}

std::vector<int64_t> all_of(const Ranks& ranks) {
  std::vector<int64_t> numbers(static_cast<size_t>(ranks.ranks()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

uint64_t bytes_of(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

at::Tensor tensor_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions(at::kByte));
}

}  // namespace

Machines::Machines(const std::vector<std::string>& place_of_rank) {
  std::map<std::string, int64_t> known;
  for (const std::string& place : place_of_rank) {
    const auto [machine, is_new] = known.try_emplace(place, std::ssize(ranks_));
    if (is_new) ranks_.emplace_back();
    ranks_[static_cast<size_t>(machine->second)].push_back(std::ssize(machine_of_));
    machine_of_.push_back(machine->second);
  }
}

int64_t Machines::holder(int64_t rank, int64_t copy, int64_t copies) const {
  INTERNAL_CHECK(copy >= 0 && copy < copies && copies < count(), "copy {} of {} on {} machines", copy, copies, count());
  const std::vector<int64_t>& own = ranks(of(rank));
  const auto place = static_cast<size_t>(std::ranges::find(own, rank) - own.begin());
  // With one copy half a ring away: machines that stand beside each other tend to be gone together.
  const int64_t apart = std::max<int64_t>(1, count() / (copies + 1));
  const std::vector<int64_t>& there = ranks((of(rank) + (copy + 1) * apart) % count());
  return there[place % there.size()];
}

// What all say of one snapshot.
struct RunSnapshots::Known {
  std::string snapshot;
  std::string mesh;
  std::map<int64_t, Manifest> manifests;          // of the parts, by rank
  std::map<int64_t, std::set<int64_t>> machines;  // that have the part
  bool is_one = true;                             // all parts are of one mesh, and say the same wherever they are

  [[nodiscard]] bool is_whole() const {
    const int64_t ranks = mesh.empty() ? 1 : parse_mesh(mesh).ranks();
    return is_one && std::ssize(manifests) == ranks && manifests.rbegin()->first == ranks - 1;
  }
  [[nodiscard]] uint64_t missing_bytes(int64_t machine) const {
    uint64_t bytes = 0;
    for (const auto& [rank, manifest] : manifests)
      if (!machines.at(rank).contains(machine)) bytes += bytes_of(manifest);
    return bytes;
  }
};

// A part that goes from one rank to another.
struct RunSnapshots::Transfer {
  int64_t part = 0, from = 0, to = 0;
};

RunSnapshots::RunSnapshots(std::shared_ptr<Ranks> ranks, const fs::path& output, std::string run, fs::path memory,
                           int64_t copies)
    : ranks_(std::move(ranks)),
      run_(std::move(run)),
      memory_(std::move(memory)),
      store_(memory_, output),
      machines_(exchange(place_of(memory_))),
      copies_(std::min(copies, machines_.count() - 1)) {
  const std::string attempt = exchange(str("{} {} {}", run_, std::time(nullptr), ::getpid()))[0];
  attempt_ = hash_bytes(std::as_bytes(std::span(attempt)));
}

std::vector<std::string> RunSnapshots::exchange(const std::string& mine) {
  return ranks_ == nullptr ? std::vector{mine} : ranks_->exchange(mine);
}

void RunSnapshots::barrier() {
  if (ranks_ != nullptr) ranks_->barrier();
}

void RunSnapshots::together(const std::function<void()>& work) {
  try {
    work();
  } catch (const LostRank&) {
    throw;
  } catch (const RankFailed&) {
    throw;
  } catch (const UserError& error) {
    if (ranks_ == nullptr) throw;
    ranks_->fail(error.what());
  }
}

// Of the parts in this machine's memory those that are this rank's to look at, byte by byte: its ranks share them.
std::string RunSnapshots::describe_own() const {
  const std::vector<int64_t>& here = machines_.ranks(machines_.of(rank()));
  const auto own = static_cast<size_t>(std::ranges::find(here, rank()) - here.begin());
  const std::vector<SnapshotStore::Part> parts = store_.parts();
  nlohmann::ordered_json intact = nlohmann::ordered_json::array();
  for (size_t i = own; i < parts.size(); i += here.size())
    if (store_.is_intact(parts[i]))
      intact.push_back({{"snapshot", parts[i].snapshot},
                        {"rank", parts[i].rank},
                        {"mesh", parts[i].manifest.mesh},
                        {"files", to_text(parts[i].manifest.files)}});
  return nlohmann::ordered_json{{"free", store_.free_bytes()}, {"parts", intact}}.dump();
}

RunSnapshots::Found RunSnapshots::find(int64_t least) {
  Found found;
  std::string refused;
  together([&] {
    if (!is_first_here()) return;
    const std::string other = store_.run();
    if (!other.empty() && other != run_)
      refused = str("what {} holds is a snapshot of another run ({}, this one is {}): removed", store_.path().string(),
                    other, run_);
    store_.claim(run_);
  });
  for (const std::string& each : exchange(refused))
    if (!each.empty()) found.from = each;

  std::string mine;
  together([&] { mine = describe_own(); });
  const std::vector<std::string> said = exchange(mine);
  std::map<std::string, Known> known;
  std::vector<uint64_t> free(static_cast<size_t>(machines_.count()));
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const std::string what = str("the snapshots of rank {}", rank);
    const Json json = parse_json(said[rank], what);
    const int64_t machine = machines_.of(static_cast<int64_t>(rank));
    free[static_cast<size_t>(machine)] = static_cast<uint64_t>(json_int(json, "free", what, 0, INT64_MAX));
    for (const Json& each : json_array(json, "parts", what)) {
      const std::string& name = json_string(each, "snapshot", what);
      const int64_t part = json_int(each, "rank", what, 0, kMostRank);
      Manifest manifest{SnapshotStore::step_of(name), parse_manifest_files(json_string(each, "files", what)),
                        json_string(each, "mesh", what)};
      Known& one = known[name];
      if (one.manifests.empty()) {
        one.snapshot = name;
        one.mesh = manifest.mesh;
      }
      const auto [there, is_new] = one.manifests.try_emplace(part, manifest);
      if (manifest.mesh != one.mesh || there->second.files != manifest.files) one.is_one = false;
      one.machines[part].insert(machine);
    }
  }
  Known* best = nullptr;  // names begin with the step: the last is the newest
  for (auto& [name, one] : known) {
    if (SnapshotStore::step_of(name) < least || !one.is_whole()) continue;
    bool fits = true;
    for (int64_t machine = 0; machine < machines_.count(); ++machine)
      fits = fits && one.missing_bytes(machine) <= free[static_cast<size_t>(machine)];
    if (fits) best = &one;
  }
  if (best == nullptr) {
    if (!known.empty() && found.from.empty())
      found.from = "no snapshot in memory is whole, and newer than the checkpoint";
    return found;
  }
  const size_t fetched = fetch(*best);
  together([&] {
    if (!is_first_here()) return;
    std::vector<SnapshotStore::Part> parts;
    for (const auto& [rank, manifest] : best->manifests) parts.push_back({best->snapshot, rank, manifest});
    store_.assemble(parts);
  });
  barrier();
  together([&] { found.checkpoint = read_checkpoint(store_.whole(best->snapshot), CheckedBy::kSizes); });
  barrier();
  const size_t parts = best->manifests.size();
  found.from = fetched == 0 ? str("all of {} parts were here", parts)
                            : str("{} of {} parts came from other machines", fetched, parts);
  complete_ = best->snapshot;
  return found;
}

// What a machine lacks, to the ranks there in turn. Of those that have a part the first one sends it. How many parts
// this rank's machine has got.
size_t RunSnapshots::fetch(const Known& known) {
  std::vector<Transfer> transfers;
  size_t fetched = 0;
  for (int64_t machine = 0; machine < machines_.count(); ++machine) {
    const std::vector<int64_t>& there = machines_.ranks(machine);
    size_t turn = 0;
    for (const auto& [part, machines] : known.machines) {
      if (machines.contains(machine)) continue;
      const std::vector<int64_t>& source = machines_.ranks(*machines.begin());
      transfers.push_back({part, source[static_cast<size_t>(part) % source.size()], there[turn++ % there.size()]});
      if (machine == machines_.of(rank())) ++fetched;
    }
  }
  move(known.snapshot, transfers, known.manifests);
  together([&] {
    for (const Transfer& one : transfers)
      USER_CHECK(one.to != rank() || store_.is_intact({known.snapshot, one.part, known.manifests.at(one.part)}),
                 "snapshots: what rank {} sent of rank {}'s part came damaged", one.from, one.part);
  });
  barrier();
  return fetched;
}

namespace {
// What is on its way: sent from maps of files, received into others.
struct Moving {
  std::vector<MappedFile> sent;
  std::vector<MemoryFile> received;
  struct Message {
    at::Tensor bytes;
    int64_t peer = 0;
    bool is_sent = false;
    int tag = 0;
  };
  std::vector<Message> messages;
};
}  // namespace

// All ranks are given the same.
void RunSnapshots::move(const std::string& snapshot, const std::vector<Transfer>& transfers,
                        const std::map<int64_t, Manifest>& manifests) {
  if (transfers.empty()) return;
  auto moving = std::make_unique<Moving>();
  together([&] {
    int tag = 0;
    for (const Transfer& one : transfers) {
      const bool sends = one.from == rank(), receives = one.to == rank();
      const fs::path directory = receives ? store_.make_part(snapshot, one.part) : store_.part(snapshot, one.part);
      for (const auto& [name, file] : manifests.at(one.part).files) {
        ++tag;
        if (sends) {
          const MappedFile& mapped = moving->sent.emplace_back(directory / name);
          USER_CHECK(mapped.bytes().size() == file.bytes, "{}: it was changed", (directory / name).string());
          moving->messages.push_back({tensor_of(mapped.bytes()), one.to, true, tag});
        } else if (receives) {
          const MemoryFile& made = moving->received.emplace_back(directory / name, file.bytes);
          moving->messages.push_back({tensor_of(made.bytes()), one.from, false, tag});
        }
      }
    }
  });
  barrier();  // all have room
  RankGroup& group = ranks_->among(all_of(*ranks_), /*for_messages=*/true);
  try {
    std::vector<InFlight> flights;
    for (const Moving::Message& one : moving->messages)
      flights.push_back(one.is_sent ? group.begin_send("a snapshot's copy", one.bytes, one.peer, one.tag)
                                    : group.begin_receive("a snapshot's copy", one.bytes, one.peer, one.tag));
    for (InFlight& flight : flights) flight.end();
  } catch (const LostRank&) {
    (void)moving.release();  // NOLINT(bugprone-unused-return-value): the others' bytes may still come; the process ends
    throw;
  }
  moving.reset();
  together([&] {
    for (const Transfer& one : transfers)
      if (one.to == rank()) store_.finish_part(snapshot, one.part, manifests.at(one.part));
  });
}

std::vector<RunSnapshots::Transfer> RunSnapshots::copies() const {
  std::vector<Transfer> transfers;
  for (int64_t rank = 0; ranks_ != nullptr && rank < ranks_->ranks(); ++rank)
    for (int64_t copy = 0; copy < copies_; ++copy)
      transfers.push_back({rank, rank, machines_.holder(rank, copy, copies_)});
  return transfers;
}

void RunSnapshots::check_room(uint64_t bytes, int64_t every) {
  const std::vector<std::string> all = exchange(std::to_string(bytes));
  uint64_t needed = 0;
  const auto add = [&](int64_t of, int64_t on) {
    constexpr uint64_t kAtOnce = 2;  // the last one that is whole, and the one that is being made
    if (machines_.of(on) == machines_.of(rank()))
      needed += kAtOnce * static_cast<uint64_t>(std::stoull(all[static_cast<size_t>(of)]));
  };
  for (int64_t one = 0; one < std::ssize(all); ++one) add(one, one);
  for (const Transfer& one : copies()) add(one.part, one.to);
  together([&] {
    const uint64_t there = std::min(store_.free_bytes() + store_.taken_bytes(), usable_bytes());
    USER_CHECK(needed <= there,
               "elastic.snapshot_every = {}: memory too small for snapshots: they take {} in {}, two at a time of {} "
               "ranks here{}, and {} are free: {} are missing; take fewer copies, or none with 0",
               every, human_bytes(needed), memory_.string(), machines_.ranks(machines_.of(rank())).size(),
               copies_ > 0 ? str(" and of copies of {} other machines", copies_) : std::string(), human_bytes(there),
               human_bytes(needed - there));
  });
  barrier();
}

void RunSnapshots::take(const TrainerState& state, const std::string& mesh,
                        const std::function<void(const fs::path& directory, FileSystem& files)>& write) {
  const auto began = Clock::now();
  const std::string snapshot = SnapshotStore::name_of(state.step, attempt_);
  Manifest own;
  together([&] {
    if (is_first_here()) store_.keep({complete_, snapshot});
    const fs::path directory = store_.make_part(snapshot, rank());
    write(directory, store_.files());
    if (rank() == 0) write_trainer_state(directory, state, store_.files());
    own = make_manifest(directory, state.step);
    own.mesh = mesh;
    store_.finish_part(snapshot, rank(), own);
  });
  const std::vector<std::string> files = exchange(to_text(own.files));
  std::map<int64_t, Manifest> manifests;
  for (size_t rank = 0; rank < files.size(); ++rank)
    manifests[static_cast<int64_t>(rank)] = {state.step, parse_manifest_files(files[rank]), mesh};
  move(snapshot, copies(), manifests);
  barrier();
  // Not all but the new one: others may have begun the next.
  const std::string before = std::exchange(complete_, snapshot);
  if (is_first_here() && before != snapshot) store_.forget(before);
  ++made_.count;
  made_.bytes = bytes_of(own);
  made_.seconds += seconds_since(began);
}

void RunSnapshots::remove() {
  complete_.clear();
  if (is_first_here()) store_.remove();
}

}  // namespace stepc::train
