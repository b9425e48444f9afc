#include "tests/fuzz/seeded_run.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <new>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>
#include <malloc.h>

// What is allocated now and at most, in bytes.
namespace {
std::atomic<size_t> allocated = 0, allocated_most = 0;

void* counted_if_any(void* memory) {
  if (!memory) return memory;
  const size_t now = allocated += ::malloc_usable_size(memory);
  if (now > allocated_most) allocated_most = now;
  return memory;
}
void* counted(void* memory) {
  if (!memory) throw std::bad_alloc();
  return counted_if_any(memory);
}
void uncounted(void* memory) {
  if (memory) allocated -= ::malloc_usable_size(memory);
  std::free(memory);
}
}  // namespace

void* operator new(size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new[](size_t bytes) { return counted(std::malloc(bytes)); }
// As std::stable_partition() asks for it: a sanitizer's own would not go with the delete below.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return counted_if_any(std::malloc(bytes)); }
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return counted_if_any(std::malloc(bytes));
}
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete[](void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { uncounted(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { uncounted(memory); }

namespace stepc {
namespace {

// Pieces that break readers: ends of ranges, half characters, nesting, names that mean something.
const std::vector<std::string> kNasty = {"\xFF",
                                         "\xC3",
                                         "\xED\xA0\x80",
                                         std::string(1, '\0'),
                                         "\\u0000",
                                         "\\ud800",
                                         "99999999999999999999",
                                         "-1",
                                         "1e999",
                                         "NaN",
                                         "null",
                                         "true",
                                         "{}",
                                         "[]",
                                         "\"\"",
                                         "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                                         "{\"a\":{\"a\":{\"a\":",
                                         "{%",
                                         "%}",
                                         "{{",
                                         "}}",
                                         "{#",
                                         "9223372036854775807",
                                         "4294967296",
                                         "\"type\":\"Sequence\"",
                                         "\"type\":\"Unigram\"",
                                         "\"type\":\"Metaspace\"",
                                         "\"id\":4194304",
                                         "'",
                                         "\"",
                                         "|tojson",
                                         "range(1000000000)",
                                         " * 999999999",
                                         "[:]",
                                         "[-9223372036854775808]",
                                         "\u2581",
                                         "\u0344\u0344\u0344\u0344",
                                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

std::string damaged(std::string text, std::mt19937& random) {
  const auto below = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(text.size() + 1);
    switch (random() % 7) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1U << below(8)));
        break;
      case 1:
        text.insert(at, kNasty[below(kNasty.size())]);
        break;
      case 2:
        text.erase(at, below(20));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(40)));
        break;
      case 4: {
        const auto& nasty = kNasty[below(kNasty.size())];
        text.replace(at, std::min(nasty.size(), text.size() - at), nasty);
        break;
      }
      case 5:
        if (below(4) == 0) text.resize(at);
        break;
      default:
        for (size_t i = at; i < std::min(text.size(), at + 8); ++i) text[i] = static_cast<char>(random());
    }
  }
  return text;
}
}  // namespace

int run_target(FuzzTarget target, const std::string& input, size_t spare_bytes) {
  const size_t before = allocated;
  allocated_most = before;
  const std::clock_t begin = std::clock();  // of the processor: what else runs on the machine does not count
  const int refused = target(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 1.0 * STEPC_SLOWNESS) << ::testing::PrintToString(input.substr(0, 300));
  if (refused != 0) {
    EXPECT_LE(allocated_most - before, 2 * input.size() + spare_bytes)
        << ::testing::PrintToString(input.substr(0, 300));
  }
  return refused;
}

void seeded_run(FuzzTarget target, const std::vector<std::string>& seeds, int rounds, size_t spare_bytes,
                int least_refused) {
  for (const auto& seed : seeds) EXPECT_EQ(run_target(target, seed, spare_bytes), 0) << seed.substr(0, 300);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round)
    refused += run_target(target, damaged(seeds[static_cast<size_t>(round) % seeds.size()], random), spare_bytes);
  EXPECT_GE(refused, least_refused);
}

Files broken(const std::string& good, size_t stride) {
  Files files = {"",
                 "nul",
                 "1e400",
                 std::string(30'000, '['),
                 std::string(30'000, '{'),
                 std::string(30'000, '\0'),
                 "[]",
                 "null",
                 "\xEF\xBB\xBF",
                 "\"" + std::string(30'000, 'a'),
                 std::string(30'000, '\xFF')};
  for (size_t at = 1; at + 2 < good.size(); at += stride) {
    files.push_back(good.substr(0, at));
    files.push_back(good);
    files.back()[at] = '\xFF';
  }
  return files;
}

std::string with_value(const std::string& json, const std::string& name, const std::string& value) {
  const std::string key = "\"" + name + "\":";
  const size_t at = json.find(key);
  if (at == std::string::npos) throw std::logic_error("no member is named " + name);
  const size_t begin = json.find_first_not_of(' ', at + key.size());
  size_t end = begin;
  for (int depth = 0; end < json.size(); ++end) {
    if (json[end] == '{' || json[end] == '[') ++depth;
    if (json[end] == '}' || json[end] == ']') --depth;
    if (depth < 0 || (depth == 0 && (json[end] == ',' || json[end] == '\n'))) break;
  }
  return json.substr(0, begin) + value + json.substr(end);
}

void expect_refused(FuzzTarget target, const Files& files) {
  for (const std::string& file : files)
    EXPECT_EQ(run_target(target, file, kMebibyte), 1) << ::testing::PrintToString(file.substr(0, 300));
}

}  // namespace stepc
