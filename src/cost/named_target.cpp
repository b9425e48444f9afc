#include "cost/named_target.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "base/text.h"
#include "cost/target_reader.h"

namespace stepc {

namespace {

constexpr double kCopyShare = 0.9;
constexpr double kGpuKernelSeconds = 1e-6;
constexpr double kTera = 1e12;
constexpr double kHopperPeak = 989.4, kHopperBest = 794.5;  // TFLOP/s of bf16: the data sheet's, and what was reached
constexpr double kBestShare = kHopperBest / kHopperPeak;

struct Card {
  std::string_view name, memory;  // "h100", "80"
  std::string_view title;
  int sm;
  int64_t multiprocessors, shared_kib, l2_mib;
  double memory_bytes, memory_bytes_per_second;
  double peak_f32;      // FLOP/s without tensor cores
  double matmul_share;  // of an H100's best rate in bf16
  double link_bytes_per_second;
};

// NVIDIA: A100, H100, H200 and HGX B200 data sheets; Ampere, Hopper and Blackwell tuning guides. The link is NVLink,
// each way; of an A800 and an H800 it is 400 GB/s both ways together. "h100-96" is the card of TorchTitan's
// measurements (Liang et al., TorchTitan, 2024: 96 GB of HBM2e, 500 W; its memory does 2.4 TB/s).
constexpr auto kCards = std::to_array<Card>({
    {"a100", "80", "NVIDIA A100 80GB", 80, 108, 164, 40, 80e9, 2.039e12, 19.5e12, 271.2 / kHopperBest, 300e9},
    {"h100", "80", "NVIDIA H100 80GB", 90, 132, 228, 50, 80e9, 3.35e12, 67e12, 1, 450e9},
    {"h100", "96", "NVIDIA H100 96GB", 90, 132, 228, 50, 96e9, 2.4e12, 67e12, 1, 450e9},
    {"h200", "141", "NVIDIA H200 141GB", 90, 132, 228, 50, 141e9, 4.8e12, 67e12, 1, 450e9},
    {"b200", "180", "NVIDIA B200 180GB", 100, 148, 228, 126, 180e9, 8e12, 80e12, 2250.0 / kHopperPeak, 900e9},
    {"gb200", "186", "NVIDIA GB200 186GB", 100, 152, 228, 126, 186e9, 8e12, 80e12, 2500.0 / kHopperPeak, 900e9},
    {"a800", "80", "NVIDIA A800 80GB", 80, 108, 164, 40, 80e9, 2.039e12, 19.5e12, 271.2 / kHopperBest, 200e9},
    {"h800", "80", "NVIDIA H800 80GB", 90, 132, 228, 50, 80e9, 3.35e12, 67e12, 1, 200e9},
});
constexpr double kLinkLatencySeconds = 5e-6;

struct Product {
  int64_t rows, columns, inner;
  double teraflops;
};
constexpr auto kHopperMatmuls = std::to_array<Product>({
    {256, 512, 256, 11.5},    {256, 512, 1024, 39.1},   {512, 512, 512, 40.7},    {1024, 1024, 256, 82},
    {512, 1024, 2048, 216},   {1024, 2048, 1024, 373},  {1024, 1024, 4096, 470},  {4096, 256, 4096, 376},
    {4096, 512, 256, 142},    {4096, 512, 1024, 371},   {4096, 512, 4096, 650},   {4096, 1024, 256, 216},
    {4096, 1024, 1024, 488},  {512, 4096, 4096, 644},   {1024, 2048, 4096, 654},  {1024, 4096, 2048, 634},
    {4096, 4096, 512, 543},   {4096, 4096, 1024, 677},  {4096, 4096, 2048, 739},  {8192, 4096, 4096, 808},
    {16384, 512, 4096, 729},  {16384, 1024, 256, 393},  {16384, 1024, 512, 542},  {16384, 1024, 4096, 778},
    {16384, 2048, 512, 607},  {16384, 2048, 1024, 688}, {16384, 2048, 4096, 809}, {16384, 4096, 256, 504},
    {16384, 4096, 4096, 793},
});

// `share`: of an H100's best rate in bf16. What a shape takes beyond its arithmetic at the best rate is as long.
void add_matmuls(Rates& rates, DType dtype, double share) {
  const double best = kTera * std::ranges::max(kHopperMatmuls, {}, &Product::teraflops).teraflops;
  for (const auto& [rows, columns, inner, teraflops] : kHopperMatmuls) {
    const double more = 1 / (teraflops * kTera) - 1 / best;  // seconds a FLOP
    rates.matmuls.push_back({.dtype = dtype,
                             .rows = rows,
                             .columns = columns,
                             .inner = inner,
                             .flops_per_second = 1 / (more + 1 / (share * best))});
  }
}

struct Heads {
  int64_t length, width;
  double forward, backward;  // TFLOP/s
};
constexpr auto kHopperAttentions = std::to_array<Heads>({
    {512, 64, 225, 266},
    {1024, 64, 288, 348},
    {2048, 64, 334, 395},
    {4096, 64, 363, 417},
    {8192, 64, 379, 432},
    {16384, 64, 388, 433},
    {512, 128, 315, 305},
    {1024, 128, 410, 408},
    {2048, 128, 484, 465},
    {4096, 128, 518, 499},
    {8192, 128, 529, 518},
    {16384, 128, 539, 516},
});
// The best of another card, of whose shapes less is known: its rate grows with length and width as an H100's does.
struct BestAttention {
  double forward, backward;  // TFLOP/s
};
constexpr BestAttention kHopperBestAttention{539, 518};
BestAttention best_attention_of(const Card& card) {
  if (card.sm < 90) return {0.73 * 312, 0.63 * 312};
  return card.sm < 100
             ? kHopperBestAttention
             : BestAttention{1605 / 1.3, 1605 / 1.3 * kHopperBestAttention.backward / kHopperBestAttention.forward};
}

Target target_of(const Card& card, bool tf32) {
  constexpr int64_t kKib = 1024;
  Target target;
  target.features.sm = card.sm;
  target.gpu = Gpu{.name = std::string(card.title),
                   .multiprocessors = card.multiprocessors,
                   .shared_bytes = card.shared_kib * kKib,
                   .l2_bytes = card.l2_mib * kKib * kKib,
                   .memory_bytes = static_cast<int64_t>(card.memory_bytes)};
  if (tf32) target.gpu->name += ", TF32 matmuls";
  target.bytes_per_second = kCopyShare * card.memory_bytes_per_second;
  target.flops_per_second = card.peak_f32;
  Rates& rates = target.rates;
  rates.instruction_seconds = kGpuKernelSeconds;
  rates.link_latency_seconds = kLinkLatencySeconds;
  rates.link_bytes_per_second = card.link_bytes_per_second;
  rates.matmuls.clear();
  add_matmuls(rates, DType::kBF16, card.matmul_share);
  // Without tensor cores, or in TF32 at half the rate of bf16 (all cards' data sheets).
  add_matmuls(rates, DType::kF32, tf32 ? card.matmul_share / 2 : card.peak_f32 / (kHopperPeak * kTera));
  if (has_fp8(target.features)) add_matmuls(rates, DType::kF8E4M3, 2 * card.matmul_share);
  const BestAttention best = best_attention_of(card);
  rates.attentions.clear();
  for (const bool backward : {false, true})
    for (const auto& [length, width, forward_teraflops, backward_teraflops] : kHopperAttentions) {
      const double of_hopper = kTera * (backward ? backward_teraflops : forward_teraflops);
      const double share =
          backward ? best.backward / kHopperBestAttention.backward : best.forward / kHopperBestAttention.forward;
      const double f32_share = kBestShare * card.peak_f32 / 2 / (kHopperBestAttention.forward * kTera);
      for (const auto& [dtype, of_best] : {std::pair(DType::kBF16, share), std::pair(DType::kF32, f32_share)})
        rates.attentions.push_back({.dtype = dtype,
                                    .backward = backward,
                                    .length = length,
                                    .width = width,
                                    .flops_per_second = of_hopper * of_best});
    }
  target_text::complete_gpu(target);
  return target;
}

std::string with_memory(const Card& card) { return str("{}-{}", card.name, card.memory); }

}  // namespace

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const Card& card : kCards)
    names.push_back(std::ranges::find(names, card.name) != names.end() ? with_memory(card) : std::string(card.name));
  return names;
}

Target named_target(const std::string& name_or_path, bool tf32) {
  std::string name = name_or_path;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Card& card : kCards)
    if (name == card.name || name == with_memory(card)) return target_of(card, tf32);
  USER_CHECK(!name.starts_with("v100"), "target {}: torch has no kernels for a V100 any more; there are {}",
             in_quotes(name_or_path), fmt::join(target_names(), ", "));
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name_or_path, ignored))
    return target_text::read_file(name_or_path, parse_target);
  const auto near = nearest(name, target_names());
  user_error("target {}: there is no such target and no such file; {}there are {}, or give a Target file's path",
             in_quotes(name_or_path), near ? str("did you mean {}? ", *near) : std::string(),
             fmt::join(target_names(), ", "));
}

std::optional<Target> target_of_card(const std::string& name, uint64_t memory_bytes, int64_t multiprocessors,
                                     bool tf32) {
  constexpr double kLeast = 0.97, kMost = 1.1;  // of a data sheet's bytes: a card of "80 GB" has 80 to 86 of them
  std::istringstream text(name);
  const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  const auto has = [&](std::string_view word) {
    return std::ranges::any_of(words, [&](const std::string& one) {
      return std::ranges::equal(one.substr(0, one.find('-')), word, {},
                                [](unsigned char c) { return std::tolower(c); });
    });
  };
  if (has("pcie") || has("nvl")) return std::nullopt;
  for (const Card& card : kCards) {
    const double share = static_cast<double>(memory_bytes) / card.memory_bytes;
    if (has(card.name) && card.multiprocessors == multiprocessors && share > kLeast && share < kMost)
      return target_of(card, tf32);
  }
  return std::nullopt;
}

}  // namespace stepc
