// Ranks: the processes of a run as this one sees them, and the groups of them that compute together. Every rank of a
// group makes the same calls in the same order. One thread of a rank at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "base/check.h"
#include "comm/flight.h"
#include "comm/launch.h"
#include "ir/mesh.h"
#include "ir/sharding.h"

namespace c10d {
class Store;
}

namespace stepc {

class Meeting;
class Peers;
class Watchdog;

// What went between a rank and the others.
struct Traffic {
  double seconds = 0;       // that the rank was in calls: moving bytes, and waiting for others
  uint64_t sent_bytes = 0;  // to others
};

// What a rank was doing when it lost others; plain data.
struct LostIn {
  std::string op = {};                // "all-reduce"; empty: it had not come to one
  std::vector<int64_t> members = {};  // that make it together, by their number in the run
  std::vector<int64_t> missing = {};  // those of them that did not come
  bool is_late = false;               // they did not answer in time; else they are gone
};

// A rank of the run is gone, or did not answer in time: this one cannot go on either. Says in one line which call of
// which ranks waited for whom.
class LostRank : public UserError {
 public:
  explicit LostRank(const std::string& line, LostIn in = {}) : UserError(line), lost(std::move(in)) {}
  LostIn lost;
};

// A rank said that it cannot go on (Ranks::fail()), in its words: all ranks know, and end alike.
class RankFailed : public UserError {
 public:
  using UserError::UserError;
};

// An exchange that is on its way: its tensors' memory is in use until end(). A rank that lets go of one before that has
// lost the others.
class InFlight {
 public:
  struct Works;
  explicit InFlight(std::unique_ptr<Works> works);
  InFlight(InFlight&& other) noexcept;
  InFlight& operator=(InFlight&& other) noexcept;
  ~InFlight();
  // Returns when all has come and what was sent may change. Throws LostRank.
  void end();

 private:
  std::unique_ptr<Works> works_;
};

// Some ranks, in an order. Tensors are contiguous and on the CPU; nothing is allocated for them. All that moves goes
// directly from rank to rank into the place where it belongs; each rank reduces its part itself, in the order of ranks
// and in float32 where the type is narrower, so every run gives the same bits and so does every rank.
class RankGroup {
 public:
  explicit RankGroup(std::unique_ptr<Peers> peers);
  ~RankGroup();
  RankGroup(RankGroup&&) noexcept;

  [[nodiscard]] int64_t rank() const;                         // within the group
  [[nodiscard]] int64_t ranks() const;                        // of the group
  [[nodiscard]] const std::vector<int64_t>& members() const;  // in the run, by their rank within the group
  [[nodiscard]] const Traffic& traffic() const;

  // Each takes one tensor or several, and does with each what it would do with that alone: all are on their way at
  // once. result: (ranks, ...operand). The operand may be this rank's part of the result.
  void all_gather(at::TensorList operands, at::TensorList results);
  // Both (ranks, ...), on different memory: part j goes to rank j, and what rank j sent is part j of the result.
  void all_to_all(at::TensorList operands, at::TensorList results);
  // On different memory: goes to the rank `by` places behind this one, around the group; the result comes from before.
  void rotate(at::TensorList operands, at::TensorList results, int64_t by);
  // To one rank of the group and from one, by a number of which both sides know and that no other message between them
  // has at the time; in whatever order. Not in a group that does anything else.
  InFlight begin_send(std::string_view what, at::TensorList tensors, int64_t to, int tag);
  InFlight begin_receive(std::string_view what, at::TensorList tensors, int64_t from, int tag);
  // As above, which return at once. Several may be on their way, which all ranks begin in one order.
  InFlight begin_all_gather(at::TensorList operands, at::TensorList results);
  InFlight begin_all_to_all(at::TensorList operands, at::TensorList results);
  InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by);
  // operand: (ranks, ...result). Scratch holds what the other ranks send at a time: reduction_scratch_bytes() of
  // ir/rank_parts.h, for all elements of each operand, these sizes aligned().
  void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void* scratch,
                      uint64_t scratch_bytes);
  // What one rank of the group has there, to all.
  void broadcast(at::TensorList tensors, int64_t from = 0);
  // In place, with scratch memory as above.
  void all_reduce(at::TensorList tensors, ReduceOp how, void* scratch, uint64_t scratch_bytes);

 private:
  std::unique_ptr<Peers> peers_;
};

// All ranks of a run; one object a rank, shared by what runs on it.
class Ranks {
 public:
  // Meets the other ranks. UserError: nobody listens at the address, the port is taken, a rank is given twice, ranks
  // that did not come. `to_meet` bounds this, `to_answer` every later call.
  static std::shared_ptr<Ranks> join(const Launch& launch, std::chrono::milliseconds to_meet,
                                     std::chrono::milliseconds to_answer);
  // The same for a program of somebody's own, which may use torch.distributed. Has that a store by now, which the
  // process shares with the others, they meet there, under names of stepc's own: `launch` says who this is, and an
  // address by which the machine is reached from the others. Without a store they meet where `launch` says, and leave
  // that port.
  static std::shared_ptr<Ranks> join(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                     std::chrono::milliseconds to_meet, std::chrono::milliseconds to_answer);
  // Ranks that are threads of this process, for tests: each object is for a thread of its own.
  static std::vector<std::shared_ptr<Ranks>> threads(int64_t ranks,
                                                     std::chrono::milliseconds timeout = std::chrono::seconds(60));
  explicit Ranks(std::unique_ptr<Meeting> meeting);
  ~Ranks();

  // Some of these ranks, in that order, this one among them, as a run of their own: the stage of a pipeline, say. They
  // share connections with the whole, whose calls are another's.
  [[nodiscard]] std::shared_ptr<Ranks> part(const std::vector<int64_t>& members) const;

  [[nodiscard]] int64_t rank() const;
  [[nodiscard]] int64_t ranks() const;
  // By its number among all ranks that were started, of which these may be a part.
  [[nodiscard]] int64_t rank_in_run() const;
  // How often ranks have met in the launcher's store, this time with them: above 1 it has started the run again.
  [[nodiscard]] int64_t round() const;
  // What this rank does, noted by whatever runs on it, on a part of the run too.
  [[nodiscard]] Flight& flight() { return *flight_; }

  // Looks after this rank from now on (watch/watchdog.h); all call it together. `run`: the directory in which the run
  // leaves what it did last, where it fails; empty: nothing is left.
  void watch(const std::filesystem::path& run, double stall_seconds);
  // What does; nullptr: nobody does.
  [[nodiscard]] Watchdog* watchdog() { return watchdog_.get(); }

  // This rank's group along the axes (group_of of ir/mesh.h), made at the first call for these ranks in this order and
  // kept: its ranks make that call together.
  RankGroup& along(const Mesh& mesh, const std::vector<Axis>& axes);
  RankGroup& all();
  // Of these ranks, in that order, this one among them; for nothing but sends and receives, or for anything else.
  RankGroup& among(const std::vector<int64_t>& members, bool for_messages = false);

  // All of them once more, for nothing but sends and receives, on connections of their own: for a thread beside the one
  // that makes the other calls. Not in traffic(). `name`: of several such.
  [[nodiscard]] std::unique_ptr<RankGroup> apart(const std::string& name) const;

  // What everybody gave, in the order of ranks; for short texts. This and the next three throw RankFailed where another
  // rank called fail() in the stead of one of them.
  std::vector<std::string> exchange(const std::string& mine);
  // The same of a number that is not negative, and the largest.
  std::vector<int64_t> each(int64_t mine);
  int64_t largest(int64_t mine);
  // Returns once every rank has called it.
  void barrier();
  // Tells the others why this rank cannot go on, from their next call of those above, and throws RankFailed as they do:
  // with "rank 1: why", or just why where all ranks say the same.
  [[noreturn]] void fail(const std::string& why);
  // The same from a rank that ends with an error of its own, which is not thrown again.
  void tell(const std::string& why) noexcept;

  // All groups of the run are made, but perhaps a few: nobody who connects is heard until the next one is.
  void stop_listening();

  // Of all calls so far: how long this rank was in them, and what it sent.
  [[nodiscard]] Traffic traffic() const;

 private:
  using Groups = std::map<std::pair<std::vector<int64_t>, std::string>, RankGroup>;  // by ranks in the run, and a name
  Ranks(std::shared_ptr<Meeting> meeting, std::shared_ptr<Flight> flight, std::shared_ptr<Groups> groups,
        std::vector<int64_t> members);
  std::vector<int64_t> numbers(int64_t mine, const std::string* failure = nullptr);
  std::vector<std::string> texts(const std::string& mine, const std::vector<int64_t>& size_of);

  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Flight> flight_;
  std::vector<int64_t> members_;    // in the run
  int64_t own_ = 0;                 // which of them this one is
  std::shared_ptr<Groups> groups_;  // of the run: a part counts in its traffic
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace stepc
