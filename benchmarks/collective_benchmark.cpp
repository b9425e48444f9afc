// The collectives of RankGroup beside c10d's own, between ranks that are threads of this process and talk over
// loopback: collective_benchmark [ranks] [rounds]. One line a way and size: the median of its seconds, and what a
// rank's CPU takes of it. That everything goes by send and receive into place, and each rank sums a part, comes from
// it.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "benchmarks/stopwatch.h"
#include "comm/ranks.h"
#include "comm/reduce.h"
#include "comm/transport.h"

namespace {

using namespace stepc;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Way {
  const char* collective;
  const char* how;
  std::function<void()> run;
  std::vector<double> seconds = {}, cpu = {};
};

// `elements` on each rank before an all_gather, and of each rank's operand before the others.
std::vector<Way> ways_of(RankGroup& group, c10d::Backend& backend, int64_t elements, at::ScalarType type) {
  const int64_t n = group.ranks();
  const int64_t part = elements / n;
  const at::Tensor operand = at::ones({elements}, type), parts = operand.view({n, part});
  const at::Tensor gathered = at::empty({n, elements}, type), copies = at::empty({n, elements}, type);
  const at::Tensor exchanged = at::empty({n, part}, type), own = at::empty({part}, type);
  const at::Tensor scratch = at::empty({elements * operand.element_size()}, at::kByte);
  const auto all_to_all = [&backend](at::Tensor from, at::Tensor to) {
    std::vector<int64_t> same;
    backend.alltoall_base(to, from, same, same)->wait();
  };
  return {
      {"all_gather", "into place", [=, &group] { group.all_gather(operand, gathered); }},
      {"all_gather", "copies, all-to-all",
       [=] {
         copies.copy_(operand.expand({n, elements}));
         all_to_all(copies, gathered);
       }},
      {"all_gather", "c10d's",
       [=, &backend] {
         at::Tensor from = operand, to = gathered.view({-1});
         backend._allgather_base(to, from)->wait();
       }},
      {"all_to_all", "into place", [=, &group] { group.all_to_all(parts, exchanged); }},
      {"all_to_all", "c10d's", [=] { all_to_all(parts, exchanged); }},
      {"reduce_scatter", "into place, summed",
       [=, &group] { group.reduce_scatter(parts, own, ReduceOp::kSum, scratch.mutable_data_ptr(), scratch.nbytes()); }},
      {"reduce_scatter", "all-to-all, summed",
       [=] {
         all_to_all(parts, exchanged);
         std::vector<const void*> of;
         for (int64_t k = 0; k < n; ++k) of.push_back(exchanged[k].const_data_ptr());
         reduce_parts(of, own.mutable_data_ptr(), part, type, ReduceOp::kSum);
       }},
      {"reduce_scatter", "c10d's",
       [=, &backend] {
         at::Tensor from = parts.view({-1}), to = own;
         backend._reduce_scatter_base(to, from)->wait();
       }},
      {"all_reduce", "parts summed, gathered",
       [=, &group] { group.all_reduce(operand, ReduceOp::kSum, scratch.mutable_data_ptr(), scratch.nbytes()); }},
      {"all_reduce", "c10d's",
       [=, &backend] {
         std::vector<at::Tensor> in_place = {operand};
         backend.allreduce(in_place)->wait();
       }},
  };
}

void compare(Ranks& ranks, c10d::Backend& backend, int64_t elements, at::ScalarType type, int rounds) {
  std::vector<Way> ways = ways_of(ranks.all(), backend, elements, type);
  for (int round = -1; round < rounds; ++round)
    for (Way& way : ways) {
      ranks.barrier();
      const double before = cpu_seconds();
      const double seconds = seconds_of(way.run);
      ranks.barrier();
      const double cpu = cpu_seconds() - before;
      if (round < 0) continue;
      way.seconds.push_back(seconds);
      way.cpu.push_back(cpu / static_cast<double>(ranks.ranks()));
    }
  if (ranks.rank() != 0) return;
  for (const Way& way : ways)
    std::printf("%-5s %9ld  %-14s %-22s %10.3f ms   CPU %9.3f ms\n", type == at::kFloat ? "f32" : "bf16", elements,
                way.collective, way.how, median(way.seconds) * 1e3, median(way.cpu) * 1e3);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int n = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  const auto all = Ranks::threads(n);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = cpu_transport("127.0.0.1");
      const auto backend = transport->connect(store, rank, n, std::chrono::seconds(60));
      for (const int64_t elements : {1 << 4, 1 << 10, 1 << 14, 1 << 18, 10'000'000})
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
          compare(*all[static_cast<size_t>(rank)], *backend, elements / n * n, type, rounds);
    });
  for (std::thread& thread : threads) thread.join();
}
