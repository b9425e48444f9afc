// What training waits for when a checkpoint is saved, beside a plain copy of the same bytes:
//
//   stall    copy the state aside and start the thread that writes it (train/step/staged_checkpoint.h, BackgroundSaver)
//   memcpy   the same tensors, one memcpy each, by as many threads
//   snapshot copy the state into a snapshot's place in memory and start the thread that hashes it (RunSnapshots); the
//   first two
//            take their memory and do not count
//
// The files are written for real, under the directory that is given, else under the temporary one; snapshots under
// /dev/shm. With --json the medians are one line for benchmarks/goodput.py.
//   checkpoint_benchmark [MEGABYTES [THREADS [DIRECTORY]]] [--json]
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/stopwatch.h"
#include "checkpoint/background_saver.h"
#include "checkpoint/tensors.h"
#include "train/run/run_snapshots.h"
#include "train/step/staged_checkpoint.h"

namespace {

using stepc::median;
using stepc::NamedTensors;
using stepc::seconds_of;

// Weights and two moments of layers such as a decoder has: many matrices, as many small vectors.
NamedTensors state_of(int64_t bytes) {
  constexpr int64_t kWidth = 1024, kFloat = 4;
  NamedTensors tensors;
  for (int64_t made = 0; made < bytes;) {
    const std::string name = fmt::format("layer.{}", tensors.size());
    tensors.emplace_back(name + ".weight", at::rand({kWidth, kWidth}));
    tensors.emplace_back(name + ".norm", at::rand({kWidth}));
    made += kFloat * kWidth * (kWidth + 1);
  }
  return tensors;
}

// Cut into equal runs of tensors, one a thread.
void copy_plainly(const NamedTensors& from, const NamedTensors& to) {
  at::parallel_for(0, static_cast<int64_t>(from.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      std::memcpy(to[i].second.mutable_data_ptr(), from[i].second.const_data_ptr(), from[i].second.nbytes());
  });
}

}  // namespace

int main(int argc, char** argv) {
  const bool as_json = argc > 1 && std::string(argv[argc - 1]) == "--json";
  if (as_json) --argc;
  const int64_t megabytes = argc > 1 ? std::stoll(argv[1]) : 256;
  if (argc > 2) at::set_num_threads(std::stoi(argv[2]));
  const std::filesystem::path directory =
      (argc > 3 ? std::filesystem::path(argv[3]) : std::filesystem::temp_directory_path()) /
      fmt::format("stepc-checkpoint-benchmark-{}", ::getpid());
  const NamedTensors state = state_of(megabytes * 1'000'000);
  NamedTensors plain;
  for (const auto& [name, tensor] : state) plain.emplace_back(name, at::zeros_like(tensor));
  stepc::train::StagedCheckpoint staged(state, {});
  stepc::BackgroundSaver saver(directory);

  stepc::train::RunSnapshots snapshots(nullptr, directory, "of this benchmark", "/dev/shm", 0);
  snapshots.find(INT64_MAX);

  std::vector<double> stalls, copies, writes, snapshot_stalls, snapshot_works;
  constexpr int kRounds = 7;
  for (int round = 0; round < kRounds; ++round) {
    const double copy = seconds_of([&] { copy_plainly(state, plain); });
    const double stall = seconds_of([&] {
      staged.copy(state, {});
      saver.begin({.step = round}, {.last = 1}, [&](const auto& path, stepc::FileSystem& files) {
        stepc::save_tensors(path / "optimizer.safetensors", staged.weights(), {}, files);
      });
    });
    const auto saved = saver.wait();
    const double beside = snapshots.made().beside_seconds;
    const double snapshot = seconds_of([&] {
      snapshots.take({.step = round}, {}, [&](const auto& path, stepc::FileSystem& files) {
        stepc::save_tensors(path / "optimizer.safetensors", state, {}, files);
      });
    });
    snapshots.wait();
    if (round == 0) continue;  // pages are touched
    snapshot_stalls.push_back(snapshot);
    snapshot_works.push_back(snapshots.made().beside_seconds - beside);
    copies.push_back(copy);
    stalls.push_back(stall);
    writes.push_back(saved->seconds);
  }
  std::filesystem::remove_all(directory);
  snapshots.remove();
  const double gigabytes = 1e-9 * static_cast<double>(staged.bytes());
  if (as_json) {
    fmt::print(
        R"({{"copies": {{"gigabytes": {}, "memcpy": {}, "save_stall": {}, "snapshot_stall": {}, "hashing": {}}}}})"
        "\n",
        gigabytes, median(copies), median(stalls), median(snapshot_stalls), median(snapshot_works));
    return 0;
  }
  fmt::print("{:.2f} GB in {} tensors, {} threads, medians of {} rounds\n", gigabytes, state.size(),
             at::get_num_threads(), kRounds - 1);
  fmt::print("memcpy  {:8.4f} s  {:6.2f} GB/s\n", median(copies), gigabytes / median(copies));
  fmt::print("stall   {:8.4f} s  {:6.2f} GB/s  {:.2f} of memcpy\n", median(stalls), gigabytes / median(stalls),
             median(stalls) / median(copies));
  fmt::print("writing {:8.4f} s  {:6.2f} GB/s, beside the training\n", median(writes), gigabytes / median(writes));
  fmt::print("snapshot {:7.4f} s  {:6.2f} GB/s  {:.2f} of memcpy\n", median(snapshot_stalls),
             gigabytes / median(snapshot_stalls), median(snapshot_stalls) / median(copies));
  fmt::print("hashing {:8.4f} s  {:6.2f} GB/s, beside the training\n", median(snapshot_works),
             gigabytes / median(snapshot_works));
  return 0;
}
