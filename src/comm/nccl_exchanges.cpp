#include "comm/nccl_exchanges.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include "aten/device_facts.h"
#include "aten/device_hook.h"
#include "base/check.h"
#include "base/clock.h"

namespace stepc {

namespace {

constexpr std::chrono::milliseconds kLookEvery{50};  // between two looks at what has begun
constexpr int kRollCall = 1 << 30;                   // a tag that no exchange comes to

Nccl::Type type_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return Nccl::kFloat32;
    case c10::ScalarType::Double:
      return Nccl::kFloat64;
    case c10::ScalarType::BFloat16:
      return Nccl::kBfloat16;
    case c10::ScalarType::Half:
      return Nccl::kFloat16;
    case c10::ScalarType::Long:
      return Nccl::kInt64;
    case c10::ScalarType::Int:
      return Nccl::kInt32;
    case c10::ScalarType::Char:
      return Nccl::kInt8;
    case c10::ScalarType::Byte:
    case c10::ScalarType::Bool:
      return Nccl::kUint8;
    default:
      user_error("ranks on CUDA devices do not reduce tensors of {}: NCCL has no such type", c10::toString(type));
  }
}
// Before a call of the group is made, of which all have to be.
void check_types(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) static_cast<void>(type_of(tensor.scalar_type()));
}
// A sum of bools is their largest.
Nccl::Op op_of(ReduceOp how, c10::ScalarType type) {
  if (how == ReduceOp::kSum && type != c10::ScalarType::Bool) return Nccl::kSum;
  return how == ReduceOp::kMin ? Nccl::kMin : Nccl::kMax;
}

// Which device a rank has. Its number says nothing: a launcher may show each rank one device.
struct Seat {
  std::array<char, 64> id = {}, host = {};
};

// Gives each rank what every rank has.
template <class T>
std::vector<T> all_of(Peers& peers, std::string_view op, const T& mine, std::optional<int> tag = {}) {
  std::vector<T> got(peers.members().size());
  const std::vector<SentBytes> sent(got.size(), {&mine, sizeof(T)});
  std::vector<ReceivedBytes> received;
  for (T& one : got) received.push_back({&one, sizeof(T)});
  peers.begin(op, sent, received, tag).end();
  return got;
}

void check_devices(Peers& peers, const c10::Device& device) {
  Seat mine;
  const auto facts = device_facts(device);
  if (facts) facts->id.copy(mine.id.data(), mine.id.size() - 1);
  gethostname(mine.host.data(), mine.host.size() - 1);
  const std::vector<Seat> all = all_of(peers, "the ranks' devices", mine);
  for (size_t k = 0; k < all.size(); ++k)
    for (size_t j = 0; j < k; ++j)
      USER_CHECK(all[k].id[0] == 0 || all[j].id != all[k].id,
                 "ranks {} and {} are on one device of {}: each takes the device of its LOCAL_RANK, with "
                 "torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before its model is made",
                 peers.members()[j], peers.members()[k], all[k].host.data());
}

class NcclExchanges final : public Exchanges {
 public:
  NcclExchanges(Peers& peers, Exchanges& copied, const c10::Device& device, const Nccl& nccl, NativeStream native)
      : peers_(peers),
        copied_(copied),
        device_(device),
        nccl_(nccl),
        native_(std::move(native)),
        guard_(*c10::impl::getDeviceGuardImpl(device.type())),
        stream_(guard_.getStreamFromGlobalPool(device)) {}

  void connect() {
    check_devices(peers_, device_);
    const c10::DeviceGuard on(device_);
    Nccl::Id id = {};
    if (peers_.rank() == 0) must("the first round", nccl_.get_unique_id(&id));
    id = all_of(peers_, "the first round", id)[0];
    must("the first round",
         nccl_.init_rank(&comm_, static_cast<int>(peers_.ranks()), id, static_cast<int>(peers_.rank())));
    watch_ = std::thread([this] { watch(); });
    // NCCL connects at the first exchange: not while a graph is recorded, nor in the first step's time.
    const LibraryMemoryScope librarys;
    const at::Tensor first = at::zeros({1}, at::TensorOptions(device_).dtype(at::kFloat));
    all_reduce(first, ReduceOp::kSum, nullptr, 0);
    guard_.synchronizeStream(guard_.getStream(device_));
    check();
  }

  ~NcclExchanges() override {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    wakes_.notify_all();
    if (watch_.joinable()) watch_.join();
    if (comm_ != nullptr && !is_aborted_) static_cast<void>(nccl_.destroy(comm_));
  }

  InFlight begin_all_gather(at::TensorList operands, at::TensorList results) override {
    return begun("all-gather", [&](Nccl::Stream stream, const auto& check) {
      for (size_t t = 0; t < operands.size(); ++t)
        if (const size_t bytes = operands[t].nbytes(); bytes > 0)
          check(nccl_.all_gather(operands[t].const_data_ptr(), results[t].mutable_data_ptr(), bytes, Nccl::kUint8,
                                 comm_, stream));
    });
  }

  InFlight begin_all_to_all(at::TensorList operands, at::TensorList results) override {
    return begun("all-to-all", [&](Nccl::Stream stream, const auto& check) {
      for (size_t t = 0; t < operands.size(); ++t) {
        const size_t bytes = operands[t].nbytes() / static_cast<size_t>(peers_.ranks());
        for (int k = 0; bytes > 0 && k < peers_.ranks(); ++k) {
          const size_t at = static_cast<size_t>(k) * bytes;
          check(nccl_.send(static_cast<const char*>(operands[t].const_data_ptr()) + at, bytes, Nccl::kUint8, k, comm_,
                           stream));
          check(nccl_.receive(static_cast<char*>(results[t].mutable_data_ptr()) + at, bytes, Nccl::kUint8, k, comm_,
                              stream));
        }
      }
    });
  }

  InFlight begin_rotate(at::TensorList operands, at::TensorList results, int64_t by) override {
    const int64_t n = peers_.ranks(), own = peers_.rank();
    const int to = static_cast<int>((own + by) % n), from = static_cast<int>((own + n - by) % n);
    return begun("rotation", [&](Nccl::Stream stream, const auto& check) {
      for (size_t t = 0; t < operands.size(); ++t)
        if (const size_t bytes = operands[t].nbytes(); bytes > 0) {
          check(nccl_.send(operands[t].const_data_ptr(), bytes, Nccl::kUint8, to, comm_, stream));
          check(nccl_.receive(results[t].mutable_data_ptr(), bytes, Nccl::kUint8, from, comm_, stream));
        }
    });
  }

  InFlight begin_messages(std::string_view what, at::TensorList sent, int64_t to, at::TensorList received, int64_t from,
                          std::optional<int> tag) override {
    check();
    return copied_.begin_messages(what, sent, to, received, from, tag);
  }

  void broadcast(at::TensorList tensors, int64_t from) override {
    begun("broadcast", [&](Nccl::Stream stream, const auto& check) {
      for (const at::Tensor& tensor : tensors)
        if (tensor.numel() > 0) {
          void* const memory = tensor.mutable_data_ptr();
          check(nccl_.broadcast(memory, memory, tensor.nbytes(), Nccl::kUint8, static_cast<int>(from), comm_, stream));
        }
    }).end();
  }

  InFlight begin_reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how) override {
    check_types(results);
    return begun("reduce-scatter", [&](Nccl::Stream stream, const auto& check) {
      for (size_t t = 0; t < operands.size(); ++t)
        if (const auto type = results[t].scalar_type(); results[t].numel() > 0)
          check(nccl_.reduce_scatter(operands[t].const_data_ptr(), results[t].mutable_data_ptr(),
                                     static_cast<size_t>(results[t].numel()), type_of(type), op_of(how, type), comm_,
                                     stream));
    });
  }
  void reduce_scatter(at::TensorList operands, at::TensorList results, ReduceOp how, void*, uint64_t) override {
    begin_reduce_scatter(operands, results, how).end();
  }

  void all_reduce(at::TensorList tensors, ReduceOp how, void*, uint64_t) override {
    check_types(tensors);
    begun("all-reduce", [&](Nccl::Stream stream, const auto& check) {
      for (const at::Tensor& tensor : tensors)
        if (const auto type = tensor.scalar_type(); tensor.numel() > 0)
          check(nccl_.all_reduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(),
                                 static_cast<size_t>(tensor.numel()), type_of(type), op_of(how, type), comm_, stream));
    }).end();
  }

  void check() override {
    if (lost_) throw LostRank(*lost_);
    std::string op, why;
    {
      const std::scoped_lock lock(mutex_);
      look();
      op = failed_op_;
      why = failure_;
    }
    if (!why.empty()) lose(op, why);
  }

 private:
  // What the device has not finished yet.
  struct Begun {
    std::string op;
    std::shared_ptr<c10::Event> done;
    Clock::time_point at;
  };

  struct Works final : InFlight::Works {
    Works(NcclExchanges& of, std::string_view name, std::shared_ptr<c10::Event> event)
        : exchanges(of), op(name), done(std::move(event)) {}
    ~Works() override {
      if (done && !exchanges.lost_)
        exchanges.lost_.emplace(op + " was given up before it had ended", LostIn{op, exchanges.peers_.members()});
    }
    void end() override {
      exchanges.check();
      if (const auto event = std::exchange(done, nullptr)) event->block(exchanges.guard_.getStream(exchanges.device_));
    }
    NcclExchanges& exchanges;
    std::string op;
    std::shared_ptr<c10::Event> done;  // none: it has ended
  };

  template <class Calls>
  InFlight begun(std::string_view op, const Calls& calls) {
    check();
    const c10::DeviceGuard on(device_);
    c10::Event ready(device_.type());  // the operands, and what has read the results' memory
    ready.record(guard_.getStream(device_));
    ready.block(stream_);
    must(op, nccl_.group_start());
    Nccl::Result first = Nccl::kSuccess;
    calls(native_(stream_), [&](Nccl::Result result) {
      if (first == Nccl::kSuccess) first = result;
    });
    const Nccl::Result ended = nccl_.group_end();
    must(op, first);
    must(op, ended);
    auto done = std::make_shared<c10::Event>(device_.type());
    done->record(stream_);
    {
      const std::scoped_lock lock(mutex_);
      begun_.push_back({std::string(op), done, Clock::now()});
    }
    return InFlight(std::make_unique<Works>(*this, op, std::move(done)));
  }

  void must(std::string_view op, Nccl::Result result) {
    if (result != Nccl::kSuccess && result != Nccl::kInProgress) lose(std::string(op), nccl_.error_string(result));
  }

  // Under the lock: what has gone wrong by now.
  void look() {
    if (!failure_.empty() || comm_ == nullptr) return;
    try {
      while (!begun_.empty() && begun_.front().done->query()) begun_.pop_front();
    } catch (const std::exception& error) {  // of a kernel before it, perhaps
      failure_ = line_of(error);
    }
    Nccl::Result result = Nccl::kSuccess;
    static_cast<void>(nccl_.async_error(comm_, &result));
    const bool is_late = !begun_.empty() && Clock::now() - begun_.front().at > peers_.timeout();
    if (result != Nccl::kSuccess && result != Nccl::kInProgress)
      failure_ = nccl_.error_string(result);
    else if (failure_.empty() && is_late)
      failure_ = str("it has not ended within {}", human_seconds(seconds_since(begun_.front().at)));
    if (failure_.empty()) return;
    failed_op_ = begun_.empty() ? "an exchange" : begun_.front().op;
    is_aborted_ = true;
    static_cast<void>(nccl_.abort(comm_));  // ends what the device waits in
  }

  void watch() {
    guard_.setDevice(device_);  // of this thread, which would have another one
    std::unique_lock lock(mutex_);
    while (failure_.empty() && !wakes_.wait_for(lock, kLookEvery, [&] { return ends_; })) look();
  }

  [[noreturn]] void lose(const std::string& op, const std::string& why) {
    {
      const std::scoped_lock lock(mutex_);
      if (comm_ != nullptr && !std::exchange(is_aborted_, true)) static_cast<void>(nccl_.abort(comm_));
      if (failure_.empty()) failure_ = why;
    }
    try {
      all_of(peers_, op, int64_t{0}, kRollCall);
    } catch (const LostRank& error) {
      lost_.emplace(error);
      throw;
    }
    const std::vector<int64_t>& members = peers_.members();
    lost_.emplace(str("{} of ranks {}: NCCL on {} of rank {}: {}; all of these ranks answer", op,
                      fmt::join(members, ", "), device_.str(), members[static_cast<size_t>(peers_.rank())], why),
                  LostIn{op, members});
    throw LostRank(*lost_);
  }

  Peers& peers_;
  Exchanges& copied_;
  c10::Device device_;
  const Nccl& nccl_;
  NativeStream native_;
  const c10::impl::DeviceGuardImplInterface& guard_;
  c10::Stream stream_;
  Nccl::Comm* comm_ = nullptr;
  std::optional<LostRank> lost_;  // of the ranks' thread
  std::mutex mutex_;              // guards what follows
  std::condition_variable wakes_;
  bool ends_ = false;
  bool is_aborted_ = false;
  std::deque<Begun> begun_;
  std::string failed_op_, failure_;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<Exchanges> nccl_exchanges(Peers& peers, Exchanges& copied, const c10::Device& device, const Nccl& nccl,
                                          NativeStream native) {
  auto exchanges = std::make_unique<NcclExchanges>(peers, copied, device, nccl, std::move(native));
  exchanges->connect();
  return exchanges;
}

}  // namespace stepc
