#include "comm/flight.h"

#include <thread>

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(Flight, KeepsTheLast) {
  Flight flight;
  EXPECT_TRUE(flight.last().empty());
  flight.note_step(7);
  flight.note(2, 0);
  flight.note(2, UINT32_MAX);
  EXPECT_EQ(flight.last(), (std::vector<Flight::Noted>{{.step = 7}, {.program = 2}, {-1, 2, UINT32_MAX}}));
  for (uint32_t i = 0; i < 5000; ++i) flight.note(1, i);
  EXPECT_EQ(flight.count(), 5003U);
  const auto last = flight.last();
  ASSERT_EQ(last.size(), 1000U);
  EXPECT_EQ(last.front(), (Flight::Noted{-1, 1, 4000}));
  EXPECT_EQ(last.back(), (Flight::Noted{-1, 1, 4999}));
  EXPECT_EQ(flight.last(2).front().instruction, 4998U);
}

TEST(Flight, AsksProgramsThatAreThere) {
  Flight flight;
  EXPECT_EQ(flight.place_of({.program = 0}), std::nullopt);
  const auto describe = [](uint32_t i) -> std::optional<FlightPlace> {
    if (i > 3) return std::nullopt;
    return FlightPlace{.op = std::to_string(i)};
  };
  EXPECT_EQ(flight.add_program(describe), 0U);
  EXPECT_EQ(flight.add_program([](uint32_t) { return FlightPlace{.op = "other"}; }), 1U);
  EXPECT_EQ(flight.place_of({-1, 0, 3})->op, "3");
  EXPECT_EQ(flight.place_of({-1, 1, 9})->op, "other");
  EXPECT_EQ(flight.place_of({-1, 0, 4}), std::nullopt);
  EXPECT_EQ(flight.place_of({.step = 5}), std::nullopt);
}

TEST(Flight, MakesProgressByWhateverIsNoted) {
  Flight flight;
  const uint64_t before = flight.progress();
  flight.note(0, 0);
  EXPECT_EQ(flight.progress(), before + 1);
  flight.enter("saving", false);
  EXPECT_EQ(flight.progress(), before + 2);
  EXPECT_STREQ(flight.at(), "saving");
  EXPECT_FALSE(flight.is_brief());
}

// A watchdog reads while the rank goes on.
TEST(Flight, IsReadWhileItIsWritten) {
  Flight flight;
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (uint32_t i = 0; !ends; ++i) flight.note(i, i);
  });
  for (int i = 0; i < 1000; ++i)
    for (const Flight::Noted& noted : flight.last(100)) ASSERT_EQ(noted.program, noted.instruction);
  ends = true;
  writer.join();
}

}  // namespace
}  // namespace stepc
