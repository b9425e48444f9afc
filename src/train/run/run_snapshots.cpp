#include "train/run/run_snapshots.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "ir/mesh.h"

namespace stepc::train {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMostBootText = 128;
constexpr int64_t kMostRank = INT32_MAX;

// A name of the directory that is the same for all processes on a machine that see the same files.
std::string place_of(const fs::path& memory) {
  struct stat found {};
  USER_CHECK(::stat(memory.c_str(), &found) == 0,
             "snapshots: there is no directory {}: give one in memory as STEPC_SNAPSHOT_DIR", memory.string());
  std::error_code ignored;
  const fs::path boot = "/proc/sys/kernel/random/boot_id";
  const std::string machine = fs::exists(boot, ignored) ? first_line(read_text(boot, kMostBootText)) : std::string();
  return str("{} {} {}", machine, found.st_dev, found.st_ino);
}

uint64_t bytes_of(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

void copy_on_all_threads(std::byte* to, std::span<const std::byte> from) {
  constexpr int64_t kLeast = 1 << 18;
  at::parallel_for(0, std::ssize(from), kLeast, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from.data() + begin, static_cast<size_t>(end - begin));
  });
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
  // A single copy lies half a ring away: neighbouring machines tend to fail together.
  const int64_t apart = std::max<int64_t>(1, count() / (copies + 1));
  const std::vector<int64_t>& there = ranks((of(rank) + (copy + 1) * apart) % count());
  return there[place % there.size()];
}

// What all ranks know of one snapshot.
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
      copies_(std::min(copies, machines_.count() - 1)),
      own_(store_, rank(), copy_on_all_threads),
      messages_(machines_.count() > 1 ? std::make_unique<PartMessages>(*ranks_) : nullptr) {
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

// Checks the parts in this machine's memory byte by byte. The machine's ranks share the parts among them.
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
    together([&] {
      if (is_first_here()) store_.keep({});
    });
    barrier();
    return found;
  }
  const size_t fetched = fetch(*best);
  together([&] {
    if (!is_first_here()) return;
    std::vector<SnapshotStore::Part> parts;
    for (const auto& [rank, manifest] : best->manifests) parts.push_back({best->snapshot, rank, manifest});
    store_.assemble(parts);
    store_.keep({best->snapshot});
  });
  barrier();
  together([&] { found.checkpoint = read_checkpoint(store_.whole(best->snapshot), CheckedBy::kSizes); });
  barrier();
  const size_t parts = best->manifests.size();
  found.from = fetched == 0 ? str("all of {} parts were here", parts)
                            : str("{} of {} parts came from other machines", fetched, parts);
  found_ = best->snapshot;
  return found;
}

// Sends the parts that a machine lacks to its ranks in turn; the first rank that has a part sends it. Returns how many
// parts this rank's machine has got.
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
  together([&] {
    for (const Transfer& one : transfers) {
      const Manifest& manifest = known.manifests.at(one.part);
      if (one.from == rank()) messages_->send(store_.part(known.snapshot, one.part), manifest.files, one.to);
      if (one.to != rank()) continue;
      SlotFiles files;
      files.begin(store_.make_part(known.snapshot, one.part));
      messages_->receive(files, one.from);
      store_.finish_part(known.snapshot, one.part, manifest);
      USER_CHECK(store_.is_intact({known.snapshot, one.part, manifest}),
                 "snapshots: what rank {} sent of rank {}'s part came damaged", one.from, one.part);
    }
  });
  barrier();
  return fetched;
}

std::vector<RunSnapshots::Transfer> RunSnapshots::copies() const {
  std::vector<Transfer> transfers;
  for (int64_t rank = 0; ranks_ != nullptr && rank < ranks_->ranks(); ++rank)
    for (int64_t copy = 0; copy < copies_; ++copy)
      transfers.push_back({rank, rank, machines_.holder(rank, copy, copies_)});
  return transfers;
}

uint64_t RunSnapshots::bytes_for(uint64_t saved) const {
  return PartSlots::kSlots * saved * (1 + static_cast<uint64_t>(copies_));
}

void RunSnapshots::check_room(uint64_t saved, int64_t every) {
  const std::vector<std::string> all = exchange(std::to_string(saved));
  uint64_t needed = 0;
  const auto add = [&](int64_t of, int64_t on) {
    if (machines_.of(on) == machines_.of(rank()))
      needed += PartSlots::kSlots * static_cast<uint64_t>(std::stoull(all[static_cast<size_t>(of)]));
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

bool RunSnapshots::take(const TrainerState& state, const std::string& mesh,
                        const std::function<void(const fs::path& directory, FileSystem& files)>& write) {
  const auto began = Clock::now();
  if (!settle()) {
    if (made_.left_out++ == 0)
      log().warn(
          "elastic.snapshot_every: that of step {} is still under way at step {}: snapshots that come due meanwhile "
          "are left out",
          SnapshotStore::step_of(under_way_), state.step);
    return false;
  }
  const std::string snapshot = SnapshotStore::name_of(state.step, attempt_);
  together([&] {
    const fs::path& directory = own_.begin(snapshot);
    write(directory, own_.files());
    if (rank() == 0) write_trainer_state(directory, state, own_.files());
    under_way_ = snapshot;
    done_ = std::async(std::launch::async,
                       [this, snapshot, step = state.step, mesh] { return finish(snapshot, step, mesh); });
  });
  ++made_.count;
  made_.seconds += seconds_since(began);
  return true;
}

// Runs on a thread of its own. Ranks send and receive in one order of all transfers, so the two ranks of the first
// remaining transfer are always at work on it.
RunSnapshots::Done RunSnapshots::finish(const std::string& snapshot, int64_t step, const std::string& mesh) {
  const auto began = Clock::now();
  own_.files().end();
  Manifest own = make_manifest(own_.directory(), step);
  own.mesh = mesh;
  own_.finish(own);
  for (const Transfer& one : copies()) {
    if (one.from == rank()) messages_->send(own_.directory(), own.files, one.to);
    if (one.to != rank()) continue;
    PartSlots& held = held_.try_emplace(one.part, store_, one.part).first->second;
    held.begin(snapshot);
    const ManifestFiles files = messages_->receive(held.files(), one.from);
    held.finish({step, files, mesh});
  }
  own_.make_other();
  for (auto& [part, held] : held_) held.make_other();
  return {bytes_of(own), seconds_since(began)};
}

// Whether no snapshot is in progress on any rank; then a run can continue from the last one.
bool RunSnapshots::settle() {
  if (under_way_.empty()) return true;
  const bool is_done = done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if ((ranks_ == nullptr ? int64_t{!is_done} : ranks_->largest(is_done ? 0 : 1)) != 0) return false;
  together([&] {
    const Done done = done_.get();
    made_.bytes = done.bytes;
    made_.beside_seconds += done.seconds;
  });
  under_way_.clear();
  if (is_first_here()) store_.forget(found_);
  found_.clear();
  return true;
}

// Ranks wait for each other only for a limited time, and a snapshot may take longer, so they ask together until it has
// ended.
void RunSnapshots::wait() {
  constexpr std::chrono::milliseconds kPause{2};
  while (!settle()) std::this_thread::sleep_for(kPause);
}

void RunSnapshots::remove() {
  wait();
  if (is_first_here()) store_.remove();
}

std::string to_text(const RunSnapshots::Made& made) {
  const double count = static_cast<double>(std::max<int64_t>(1, made.count));
  return str(
      "  snapshots           {}, {} of this rank each; training stood still for {:.1f} ms each, {:.1f} ms more were "
      "beside it{}",
      made.count, human_bytes(made.bytes), 1e3 * made.seconds / count, 1e3 * made.beside_seconds / count,
      made.left_out > 0 ? str("; {} were left out", made.left_out) : std::string());
}

}  // namespace stepc::train
