// Ranks: the processes of a run as this one sees them, and groups of them that compute together. Every rank of a group
// makes the same calls in the same order, from one thread at a time.
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

class Exchanges;
class Meeting;
class Peers;
class Watchdog;

// The traffic between a rank and the others.
struct Traffic {
  double seconds = 0;       // of the rank in calls: moving bytes, and waiting for others
  uint64_t sent_bytes = 0;  // to other ranks
};

// What a rank was doing when it lost others; plain data.
struct LostIn {
  std::string op = {};                // "all-reduce"; empty: in no call yet
  std::vector<int64_t> members = {};  // of that call, by their number in the run
  std::vector<int64_t> missing = {};  // the members that did not come
  bool is_late = false;               // they did not answer in time; otherwise they are gone
};

// A rank of the run is gone, or did not answer in time, so this one cannot continue either. The text says in one line
// which call of which ranks waited for whom.
class LostRank : public UserError {
 public:
  explicit LostRank(const std::string& line, LostIn in = {}) : UserError(line), lost(std::move(in)) {}
  LostIn lost;
};

// A rank has announced that it cannot continue (Ranks::fail()), with its text: all ranks know, and end in the same way.
class RankFailed : public UserError {
 public:
  using UserError::UserError;
};

// An exchange in progress: its tensors' memory is in use until end(). A rank that drops one before end() counts as
// having lost the others.
class InFlight {
 public:
  struct Works;
  explicit InFlight(std::unique_ptr<Works> works);
  InFlight(InFlight&& other) noexcept;
  InFlight& operator=(InFlight&& other) noexcept;
  ~InFlight();
  // Returns when everything has arrived and the sent memory may change. Throws LostRank.
  void end();

 private:
  std::unique_ptr<Works> works_;
};

// Scratch memory in which that many ranks reduce the operands together: reduction_scratch_bytes() of ir/rank_parts.h
// for all elements of each, with aligned() sizes.
uint64_t scratch_bytes_for(at::TensorList operands, int64_t ranks);

// Some ranks, in an order. The tensors of a call are contiguous and lie in one memory.
//
// On the CPU no memory is allocated for them, and all data goes directly from rank to rank into its place. Each rank
// reduces its part itself, in the order of ranks and in float32 if the type is narrower, so every run and every rank
// gives the same bits. On a CUDA device NCCL does it (comm/nccl_exchanges.h); the first call there connects it. On any
// other device it goes by way of copies on the host, with the same bits as there.
class RankGroup {
 public:
  explicit RankGroup(std::unique_ptr<Peers> peers);
  ~RankGroup();
  RankGroup(RankGroup&&) noexcept;

  [[nodiscard]] int64_t rank() const;                         // within the group
  [[nodiscard]] int64_t ranks() const;                        // of the group
  [[nodiscard]] const std::vector<int64_t>& members() const;  // in the run, by their rank within the group
  [[nodiscard]] const Traffic& traffic() const;

  // Each call takes one tensor or several and treats each as it would alone; all are transferred at once. result:
  // (ranks, ...operand). The operand may be this rank's part of the result.
  void all_gather(at::TensorList operands, at::TensorList results);
  // Both are (ranks, ...), in different memory: part j goes to rank j, and part j of the result comes from rank j.
  void all_to_all(at::TensorList operands, at::TensorList results);
  // In different memory: the operand goes to the rank `by` places after this one, around the group; the result comes
  // from the rank `by` places before.
  void rotate(at::TensorList operands, at::TensorList results, int64_t by);
  // Sends to one rank of the group and receives from one, by a tag that both sides know and that no other message
  // between them has at that time; in any order. Only in a group that does nothing else.
  InFlight begin_send(std::string_view what, at::TensorList tensors, int64_t to, int tag);
  InFlight begin_receive(std::string_view what, at::TensorList tensors, int64_t from, int tag);
  // As above, but these return immediately. Several may be in progress; all ranks begin them in one order.
  InFlight begin_all_gather(at::TensorList operands, at::TensorList results);
  InFlight begin_all_to_all(at::TensorList operands, at::TensorList results);
  InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by);
  // For a device, whose exchanges reduce on their way; by way of the host in memory of its own.
  InFlight begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how);
  // operand: (ranks, ...result). Scratch holds what the other ranks send at a time: scratch_bytes_for() them.
  void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void* scratch,
                      uint64_t scratch_bytes);
  // Sends the tensors of one rank of the group to all.
  void broadcast(at::TensorList tensors, int64_t from = 0);
  // In place, with scratch memory as above.
  void all_reduce(at::TensorList tensors, ReduceOp how, void* scratch, uint64_t scratch_bytes);

  // Throws LostRank where a device has lost others meanwhile; waits for nothing.
  void check() const;

 private:
  Exchanges& exchanges_of(at::TensorList tensors);
  Exchanges& messages_of(at::TensorList tensors);

  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Exchanges> host_, copied_;
  std::map<int, std::unique_ptr<Exchanges>> cuda_;  // by device
};

// All ranks of a run; one object on each rank, shared by everything that runs on it.
class Ranks {
 public:
  // Meets the other ranks. Throws UserError if nobody listens at the address, the port is taken, a rank is given twice
  // or ranks do not come. `to_meet` limits this call, `to_answer` every later call.
  static std::shared_ptr<Ranks> join(const Launch& launch, std::chrono::milliseconds to_meet,
                                     std::chrono::milliseconds to_answer);
  // The same for a user's program, which may use torch.distributed. If torch.distributed already has a store that the
  // process shares with the others, the ranks meet there, under names of stepc's own; `launch` then gives this rank,
  // and an address by which the others reach the machine. Without a store they meet where `launch` says, and then
  // release that port.
  static std::shared_ptr<Ranks> join(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                     std::chrono::milliseconds to_meet, std::chrono::milliseconds to_answer);
  // Ranks that are threads of this process, for tests: each object is for a thread of its own.
  static std::vector<std::shared_ptr<Ranks>> threads(int64_t ranks,
                                                     std::chrono::milliseconds timeout = std::chrono::seconds(60));
  explicit Ranks(std::unique_ptr<Meeting> meeting);
  ~Ranks();

  // Some of these ranks, in that order and with this one, as a run of their own, for example the stage of a pipeline.
  // They share connections with the whole, but not its calls.
  [[nodiscard]] std::shared_ptr<Ranks> part(const std::vector<int64_t>& members) const;

  [[nodiscard]] int64_t rank() const;
  [[nodiscard]] int64_t ranks() const;
  // This rank's number among all ranks that were started; these ranks may be a part of them.
  [[nodiscard]] int64_t rank_in_run() const;
  // How often ranks have met in the launcher's store, with this time. Above 1: the launcher has started the run again.
  [[nodiscard]] int64_t round() const;
  // The record of what this rank does; everything that runs on it, also on a part of the run, notes there.
  [[nodiscard]] Flight& flight() { return *flight_; }

  // Begins to watch this rank (watch/watchdog.h); all ranks call it together. `run`: the directory for the run's flight
  // files if it fails; empty: none are left.
  void watch(const std::filesystem::path& run, double stall_seconds);
  // The watchdog; nullptr if there is none.
  [[nodiscard]] Watchdog* watchdog() { return watchdog_.get(); }

  // This rank's group along the axes (group_of of ir/mesh.h), made at the first call for these ranks in this order and
  // kept. Its ranks make that call together.
  RankGroup& along(const Mesh& mesh, const std::vector<Axis>& axes);
  RankGroup& all();
  // The group of these ranks, in that order and with this one. `for_messages`: only for sends and receives; otherwise
  // for everything else.
  RankGroup& among(const std::vector<int64_t>& members, bool for_messages = false);

  // Another group of all ranks, only for sends and receives, on connections of its own: for a thread beside the one
  // that makes the other calls. Not in traffic(). `name`: distinguishes several such groups.
  [[nodiscard]] std::unique_ptr<RankGroup> apart(const std::string& name) const;

  // The texts of all ranks, in the order of ranks; for short texts. This call and the next three throw RankFailed if
  // another rank calls fail() instead of one of them.
  std::vector<std::string> exchange(const std::string& mine);
  // The same for a number that is not negative, and the largest of these numbers.
  std::vector<int64_t> each(int64_t mine);
  int64_t largest(int64_t mine);
  // Returns after every rank has called it.
  void barrier();
  // Tells the others, at their next call of those above, why this rank cannot continue, and throws RankFailed as they
  // do: with "rank 1: why", or only the reason if all ranks give the same.
  [[noreturn]] void fail(const std::string& why);
  // The same from a rank that ends with an error of its own; does not throw.
  void tell(const std::string& why) noexcept;

  // All groups of the run, except perhaps a few, are made: stops accepting connections until the next one is made.
  void stop_listening();

  // Of all calls so far: the time of this rank in them, and the bytes that it sent.
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
  int64_t own_ = 0;                 // the index of this rank among them
  std::shared_ptr<Groups> groups_;  // of the run: a part counts in its traffic
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace stepc
