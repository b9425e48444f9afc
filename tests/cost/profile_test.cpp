// A profile by hand: what its table says, and the trace that a viewer reads.
#include "cost/profile.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stepc {
namespace {

using nlohmann::json;

Profile example() {
  Profile profile;
  profile.mode = "fast";
  profile.target = {.flops_per_second = 1e9, .bytes_per_second = 1e9, .narrow_flops_per_second = 2e9};
  profile.is_calibrated = true;
  profile.seconds = 10e-3;
  const auto add = [&](std::string name, const std::string& kernel, std::string module, Phase phase, Work work,
                       double begin, double seconds, double predicted) {
    profile.instructions.push_back({.index = profile.instructions.size(),
                                    .name = std::move(name),
                                    .kernel = kernel,
                                    .module = std::move(module),
                                    .phase = phase,
                                    .work = work,
                                    .begin_seconds = begin,
                                    .seconds = seconds,
                                    .predicted_seconds = predicted,
                                    .work_class = kernel == "ATen" ? "matmul (ATen)" : "generated kernel"});
  };
  add("matmul", "ATen", "layer", Phase::kForward, {.flops = 2e6, .bytes = 1e6}, 0, 4e-3, 2e-3);
  add("mul+add", "generated", "layer", Phase::kForward, {.bytes = 5e5}, 4e-3, 1e-3, 9e-4);
  add("matmul", "ATen", "head", Phase::kBackward, {.narrow_flops = 2e6, .bytes = 5e5}, 5.5e-3, 2e-3, 1e-3);
  add("mul", "generated", "", Phase::kUpdate, {}, 8e-3, 2.5e-6, 0);
  return profile;
}

TEST(Profile, IsATableByKindAndByModule) {
  EXPECT_EQ(to_text(example(), 2),
            R"(step (fast mode) 10.00 ms: 7.00 ms in 4 instructions, 3.00 ms between them; predicted 3.90 ms
predicted from 1.0 GFLOP/s, 2.0 on bf16, 1.0 GB/s, measured on this machine
by class of work                                count    measured      %   predicted   GFLOP/s    GB/s
  matmul (ATen)                                     2     6.00 ms   60.0     3.00 ms      0.67    0.25
  generated kernel                                  2     1.00 ms   10.0    900.0 us       0.0     0.5
more than 25 % off: matmul (ATen) (-50 %)
by kind                                         count    measured      %   predicted   GFLOP/s    GB/s
  matmul (ATen)                                     2     6.00 ms   60.0     3.00 ms      0.67    0.25
  mul+add (generated)                               1     1.00 ms   10.0    900.0 us       0.0     0.5
  1 others                                          1      2.5 us    0.0      0.0 us       0.0     0.0
by module                                       count    measured      %   predicted   GFLOP/s    GB/s
  layer                                             2     5.00 ms   50.0     2.90 ms       0.4     0.3
  head                                              1     2.00 ms   20.0     1.00 ms       1.0    0.25
  1 others                                          1      2.5 us    0.0      0.0 us       0.0     0.0
)");
  Profile slow = example();
  slow.instructions[1].seconds = 5;
  EXPECT_NE(to_text(slow).find("900.0 us       0.0  0.0001\n"), std::string::npos) << "a small rate is not none";
  Profile guessed = example();
  guessed.is_calibrated = false;
  EXPECT_NE(to_text(guessed).find("1.0 GB/s, defaults: `stepc calibrate` measures this machine's"), std::string::npos);
}

TEST(Profile, IsATraceOfTwoTracks) {
  const json trace = json::parse(to_trace_events(example()));
  EXPECT_EQ(trace.at("otherData").at("mode"), "fast");
  EXPECT_DOUBLE_EQ(trace.at("otherData").at("step_us"), 10e3);
  EXPECT_DOUBLE_EQ(trace.at("otherData").at("predicted_us"), 3900);
  std::map<int, std::string> tracks;
  std::map<int, std::vector<json>> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") events[event.at("tid")].push_back(event);
  }
  EXPECT_EQ(tracks, (std::map<int, std::string>{{1, "measured"}, {2, "predicted"}}));
  ASSERT_EQ(events[1].size(), 4U);
  ASSERT_EQ(events[2].size(), 4U);
  EXPECT_DOUBLE_EQ(events[1][2].at("ts"), 5500);
  EXPECT_DOUBLE_EQ(events[1][2].at("dur"), 2000);
  EXPECT_DOUBLE_EQ(events[2][2].at("ts"), 2900) << "what is predicted lies end to end";
  EXPECT_DOUBLE_EQ(events[2][2].at("dur"), 1000);
  const json& about = events[1][2].at("args");
  EXPECT_EQ(about.at("instruction"), 2);
  EXPECT_EQ(about.at("module"), "head");
  EXPECT_EQ(about.at("phase"), "backward");
  EXPECT_DOUBLE_EQ(about.at("GFLOP/s"), 1.0);
  EXPECT_DOUBLE_EQ(about.at("GB/s"), 0.25);
}

Profile on_device() {
  Profile profile = example();
  profile.device = "cuda:0";
  profile.call_seconds = 1.5e-3;
  profile.target.gpu = Gpu{.name = "NVIDIA H100 80GB"};
  for (ProfiledInstruction& one : profile.instructions) {
    one.call_begin_seconds = one.begin_seconds / 10;
    one.call_seconds = 1e-5;
  }
  return profile;
}

TEST(Profile, OfADeviceHasTheHostsCallsBesideIt) {
  const std::string text = to_text(on_device());
  EXPECT_EQ(text.substr(0, text.find("by class")),
            R"(step (fast mode on cuda:0) 10.00 ms: 7.00 ms in 4 instructions, 3.00 ms between them; predicted 3.90 ms
times are the device's, each instruction launched by itself; the host made its calls in 1.50 ms
predicted from data sheets and published rates of NVIDIA H100 80GB
)");
  const json trace = json::parse(to_trace_events(on_device()));
  EXPECT_EQ(trace.at("otherData").at("device"), "cuda:0");
  std::vector<json> calls;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name" && event.at("tid") == 3) {
      EXPECT_EQ(event.at("args").at("name"), "the host's calls");
    }
    if (event.at("ph") == "X" && event.at("tid") == 3) calls.push_back(event);
  }
  ASSERT_EQ(calls.size(), 4U);
  EXPECT_DOUBLE_EQ(calls[2].at("ts"), 550);
  EXPECT_DOUBLE_EQ(calls[2].at("dur"), 10);
  EXPECT_DOUBLE_EQ(calls[2].at("args").at("measured_us"), 2000) << "on the device";
  Profile twice = on_device();
  twice.append(on_device());
  EXPECT_DOUBLE_EQ(twice.call_seconds, 11.5e-3);
  EXPECT_DOUBLE_EQ(twice.instructions[6].call_begin_seconds, 10.55e-3);
}

TEST(Profile, OfADeviceWhoseRatesNobodyKnowsPredictsNothing) {
  Profile profile = on_device();
  profile.is_predicted = false;
  const std::string text = to_text(profile);
  EXPECT_NE(text.find("between them; predicted -\n"), std::string::npos) << text;
  EXPECT_NE(text.find("predicted from nothing: the rates of cuda:0 are not known\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1.00 ms   10.0           -       0.0     0.5\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("more than 25 % off"), std::string::npos) << text;
  EXPECT_EQ(to_trace_events(profile).find(R"("name":"predicted")"), std::string::npos);
}

TEST(Profile, OfNothingIsATableAndATraceToo) {
  EXPECT_NE(to_text(Profile()).find("0 instructions"), std::string::npos);
  EXPECT_EQ(json::parse(to_trace_events(Profile())).at("traceEvents").size(), 3U);
}

}  // namespace
}  // namespace stepc
