#include "runtime/arena.h"

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

}  // namespace
}  // namespace stepc
