#include "runtime/arena.h"

#include <memory>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(Arena, GrowsInPlace) {
  const ArenaLease lease;
  Arena& arena = *lease;
  std::byte* base = arena.base();
  arena.grow_to(1000);
  base[999] = std::byte{7};
  arena.grow_to(64 << 20);
  EXPECT_EQ(arena.base(), base);
  EXPECT_EQ(base[999], std::byte{7});
  base[(64 << 20) - 1] = std::byte{1};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % (2 << 20), 0U);
  EXPECT_USER_ERROR(arena.grow_to(uint64_t{1} << 60), "of address space could be reserved");
}

TEST(Arena, GoesToTheNextThreadThatAsks) {
  const Arena* first = nullptr;
  const Arena* second = nullptr;
  std::thread([&] { first = &*ArenaLease(); }).join();
  std::thread([&] { second = &*ArenaLease(); }).join();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, &*ArenaLease());
}

TEST(Arena, OfARunThatEndsOnAnotherThreadIsTakenAgain) {
  std::set<const Arena*> taken;
  for (int run = 0; run < 5; ++run) {
    auto lease = std::make_unique<ArenaLease>();
    taken.insert(&**lease);
    std::thread([&] { lease.reset(); }).join();
  }
  EXPECT_EQ(taken.size(), 1U);
}

}  // namespace
}  // namespace stepc
