#include "comm/peers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/no_pipe_signal.h"

namespace stepc {

namespace {

std::vector<at::Tensor> bytes_at(const void* memory, uint64_t bytes) {
  return {at::from_blob(const_cast<void*>(memory), {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte))};
}

// Gloo has no type for it. What is no timeout is a connection that ended.
bool is_timeout(const std::exception& error) {
  const std::string_view text = error.what();
  return text.find("Timed out") != std::string_view::npos || text.find("timeout") != std::string_view::npos;
}

// Whose messages of an exchange have not come, that of its `first` among them: with it all that wait have ended.
std::vector<size_t> late_from(const PeerWorks& exchange, size_t first) {
  constexpr std::chrono::milliseconds kMoment{1};
  std::vector<size_t> late;
  for (size_t i = first; i < exchange.all.size(); ++i) {
    const auto& [peer, work] = exchange.all[i];
    if (std::ranges::count(late, peer) > 0) continue;
    try {
      if (i == first || !work->wait(kMoment)) late.push_back(peer);
    } catch (const std::exception&) {
      late.push_back(peer);
    }
  }
  return late;
}

}  // namespace

std::string line_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string line = first_line(c10_error != nullptr ? c10_error->what_without_backtrace() : error.what());
  if (const size_t place = line.find("] "); line.starts_with('[') && place != std::string::npos)
    line.erase(0, place + 2);
  return line;
}

Peers::Peers(std::vector<int64_t> members, int64_t own, c10::intrusive_ptr<c10d::Backend> backend,
             std::chrono::milliseconds timeout)
    : members_(std::move(members)), own_(own), backend_(std::move(backend)), timeout_(timeout) {
  INTERNAL_CHECK(own_ >= 0 && own_ < ranks(), "rank {} of a group of {}", own_, ranks());
  INTERNAL_CHECK(backend_ || ranks() == 1, "{} ranks without a backend", ranks());
}

InFlight::InFlight(std::unique_ptr<Works> works) : works_(std::move(works)) {}
InFlight::InFlight(InFlight&&) noexcept = default;
InFlight& InFlight::operator=(InFlight&&) noexcept = default;
InFlight::~InFlight() = default;
void InFlight::end() { works_->end(); }

// Nothing says which bytes have arrived.
PeerWorks::~PeerWorks() {
  if (!all.empty() && !peers.lost_)
    peers.lost_.emplace(op + " was given up before it had ended", LostIn{op, peers.members_});
}

void PeerWorks::end() { peers.end(*this); }

InFlight Peers::begin(std::string_view op, std::span<const SentBytes> sent, std::span<const ReceivedBytes> received,
                      std::optional<int> tag) {
  if (lost_) throw LostRank(*lost_);
  const auto n = static_cast<size_t>(ranks()), own = static_cast<size_t>(own_);
  INTERNAL_CHECK_EQ(sent.size(), received.size());
  INTERNAL_CHECK_EQ(sent.size() % n, 0U);
  const size_t rounds = sent.size() / n;
  const auto began = Clock::now();
  const NoPipeSignal none;
  auto exchange = std::make_unique<PeerWorks>(*this, op);
  exchange->all.reserve(2 * sent.size());
  const auto tag_of = [&](size_t round) {
    return static_cast<int>((static_cast<size_t>(tag.value_or(tag_)) + round) % std::numeric_limits<int>::max());
  };
  // Each rank begins with its neighbour, so that not all of them send to the same one.
  size_t peer = own;
  try {
    for (size_t i = 1; i < n; ++i)
      for (size_t round = 0; round < rounds; ++round) {
        peer = (own + n - i) % n;
        const ReceivedBytes& one = received[round * n + peer];
        if (one.bytes == 0) continue;
        std::vector<at::Tensor> into = bytes_at(one.memory, one.bytes);
        exchange->all.emplace_back(peer, backend_->recv(into, static_cast<int>(peer), tag_of(round)));
      }
    for (size_t i = 1; i < n; ++i)
      for (size_t round = 0; round < rounds; ++round) {
        peer = (own + i) % n;
        const SentBytes& one = sent[round * n + peer];
        if (one.bytes == 0) continue;
        traffic_.sent_bytes += one.bytes;
        std::vector<at::Tensor> from = bytes_at(one.memory, one.bytes);
        exchange->all.emplace_back(peer, backend_->send(from, static_cast<int>(peer), tag_of(round)));
      }
  } catch (const std::exception& error) {
    lose(op, {peer}, error);
  }
  for (size_t at = own; at < sent.size(); at += n) {
    INTERNAL_CHECK_EQ(sent[at].bytes, received[at].bytes, "{}: what this rank sends to itself", op);
    if (sent[at].bytes > 0 && sent[at].memory != received[at].memory)
      std::memcpy(received[at].memory, sent[at].memory, sent[at].bytes);
  }
  traffic_.seconds += seconds_since(began);
  if (!tag) tag_ = tag_of(rounds);
  return InFlight(std::move(exchange));
}

void Peers::end(PeerWorks& exchange) {
  if (lost_) throw LostRank(*lost_);
  const auto began = Clock::now();
  for (size_t i = 0; i < exchange.all.size(); ++i) {
    try {
      exchange.all[i].second->wait();
    } catch (const std::exception& error) {
      lose(exchange.op, is_timeout(error) ? late_from(exchange, i) : std::vector{exchange.all[i].first}, error);
    }
  }
  exchange.all.clear();
  traffic_.seconds += seconds_since(began);
}

void Peers::lose(std::string_view op, const std::vector<size_t>& peers, const std::exception& error) {
  LostIn in{std::string(op), members_, {}, is_timeout(error)};
  for (const size_t peer : peers) in.missing.push_back(members_[peer]);
  std::ranges::sort(in.missing);
  const bool is_one = in.missing.size() == 1;
  lost_.emplace(str("{} of ranks {}: rank {} waited for {} {}, which {} gone or late: {}", op,
                    fmt::join(members_, ", "), members_[static_cast<size_t>(own_)], is_one ? "rank" : "ranks",
                    fmt::join(in.missing, ", "), is_one ? "is" : "are", line_of(error)),
                in);
  throw LostRank(*lost_);
}

}  // namespace stepc
