#include "ir/trace.h"

#include <random>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/check.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// A step with every kind of line: an external, an alias, a workspace, worker scratch, an escape, a gradient.
constexpr std::string_view kTraceText = R"(stepc.trace 1
storage s0 bytes=4096 external
storage s1 bytes=1024 external
storage s2 bytes=1024
storage s3 bytes=4 escapes
%0: f32[32, 32] @s0 = parameter "model.weight"
%1: f32[8, 32] @s1 = batch "0"
%2: f32[32, 32](1, 32) @s0 = alias
call 0 %3: f32[8, 32] @s2 = aten::mm(%1, %2) | forward "model"
  alloc 65536 [1, 2)
  alloc 1024 @s2 [2, 8)
  scratch 4096 [0, 4)
call 1 %3 = aten::mul_.Tensor(%3, number(0.5)) writes %3 | forward "model"
call 2 %4: f32[] @s3 = aten::sum(%3, dtype:f32) | forward ""
  alloc 4 @s3 [6, 9) kept
rebind gradient "model.weight" none
return %4
ticks 9
)";

TEST(TraceText, RoundTrips) {
  const Trace trace = parse_trace(kTraceText);
  verify(trace);
  EXPECT_EQ(to_text(trace), kTraceText);
  EXPECT_EQ(parse_trace(to_text(trace)), trace);
  EXPECT_EQ(trace.calls[1].writes, std::vector<ValueId>{ValueId(3)});
  EXPECT_EQ(std::get<WrappedNumber>(trace.calls[1].args[1]).number.index(), 2U);
  EXPECT_TRUE(trace.allocations[2].kept);
}

TEST(TraceText, EveryKindOfConstantRoundTrips) {
  Trace trace;
  Call call;
  call.op = "aten::all";
  call.module = "a \"quoted\" \\ name\nand a line";
  call.args = {std::monostate(),
               true,
               int64_t{-7},
               2.0,
               1e-300,
               -std::numeric_limits<double>::infinity(),
               0.1,
               std::complex<double>(1, -2.5),
               std::string("mean"),
               std::vector<int64_t>{},
               std::vector<int64_t>{1, -2},
               std::vector<double>{0.5, 3},
               std::vector<bool>{true, false},
               Symbol{Symbol::Kind::kDType, "bf16"},
               Symbol{Symbol::Kind::kDevice, "cuda:0"},
               Symbol{Symbol::Kind::kLayout, "strided"},
               Symbol{Symbol::Kind::kMemoryFormat, "channels_last"},
               WrappedNumber{true},
               WrappedNumber{int64_t{3}},
               WrappedNumber{std::complex<double>(0, 1)},
               ValueId(),
               std::vector<ValueId>{ValueId()}};
  call.results = {int64_t{4}, std::monostate()};
  trace.calls.push_back(call);
  EXPECT_EQ(parse_trace(to_text(trace)), trace) << to_text(trace);
}

TEST(TraceText, RandomTracesRoundTrip) {
  rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    Trace trace;
    for (int64_t i = 0, n = 1 + below(4); i < n; ++i)
      trace.storages.push_back({random() % 100000, below(2) == 0, below(4) == 0});
    for (int64_t i = 0, n = 1 + below(8); i < n; ++i) {
      Value value;
      value.storage = StorageId(static_cast<size_t>(below(trace.storages.size())));
      value.dtype = static_cast<DType>(below(14));
      for (int64_t d = 0, rank = below(4); d < rank; ++d) {
        value.sizes.push_back(below(5));
        value.strides.push_back(below(9));
      }
      value.offset = below(50);
      value.conj = below(5) == 0;
      value.neg = below(5) == 0;
      trace.values.push_back(value);
    }
    const auto any = [&] { return ValueId(static_cast<size_t>(below(trace.values.size()))); };
    for (int64_t i = 0, n = below(6); i < n; ++i) {
      Call call;
      call.op = "aten::op";
      call.args = {any(), std::vector<ValueId>{any(), any()}, below(9)};
      call.results = {any()};
      call.phase = static_cast<Phase>(below(3));
      trace.calls.push_back(call);
      if (below(2) == 0)
        trace.allocations.push_back(
            {CallId(trace.calls.size() - 1), random() % 999, below(9), below(9), {}, below(2) == 0});
    }
    for (size_t v = 0; v < trace.values.size(); ++v) trace.outputs.emplace_back(v);
    trace.ticks = below(1000);
    RC_ASSERT(parse_trace(to_text(trace)) == trace);
  });
}

TEST(TraceText, BadTextIsRefusedWithItsLine) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_USER_ERROR(parse_trace(text), message);
  };
  expect("", "trace text, line 0: expected 'stepc.trace 1'");
  expect("stepc.trace 1\nhello\n", "trace text, line 2: unknown line, at 'hello'");
  expect("stepc.trace 1\nstorage s1 bytes=1\n", "storages are numbered from 0 in order");
  expect("stepc.trace 1\n%0: f32[1] @s0 = alias\n", "index 0 is out of range");
  expect("stepc.trace 1\nstorage s0 bytes=4\n%0: f33[1] @s0 = alias\n", "expected a dtype");
  expect("stepc.trace 1\nstorage s0 bytes=4\n%0: f32[1](1, 2) @s0 = alias\n", "as many strides as sizes");
  expect("stepc.trace 1\ncall 0 = aten::x(%0) | forward \"\"\n", "%0 is used and never defined");
  expect("stepc.trace 1\ncall 0 = aten::x(1 | forward \"\"\n", "expected ')'");
  expect("stepc.trace 1\ncall 0 = aten::x() | sideways \"\"\n", "expected a phase");
  expect("stepc.trace 1\ncall 0 = aten::x() | forward \"open\n", "a quoted text does not end");
  expect("stepc.trace 1\nalloc 4 [0, 1)\n", "no call stands before this line");
  expect("stepc.trace 1\nstorage s0 bytes=4\n%99999999: f32[1] @s0 = alias\n", "index 99999999 is out of range");
  expect("stepc.trace 1\nticks 3 4\n", "unexpected text at the end of the line");
}

TEST(TraceText, DamagedTextNeverCrashes) {
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string text(kTraceText);
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 8);
      else
        text[at] = static_cast<char>(random() % 128);
    }
    try {
      verify(parse_trace(text));
    } catch (const UserError&) {
    } catch (const InternalError&) {  // readable text of a step that breaks its promises
    }
  }
}

void expect_broken(const std::string& from, const std::string& to, const std::string& message) {
  std::string text(kTraceText);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const Trace trace = parse_trace(text);
  try {
    verify(trace);
    FAIL() << "accepted: " << message;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(TraceVerify, NamesTheBrokenPromise) {
  verify(parse_trace(kTraceText));
  expect_broken("f32[32, 32] @s0", "f32[32, 33] @s0", "leaves its storage");
  expect_broken("storage s0 bytes=4096 external", "storage s0 bytes=4096", "in a storage that the step makes");
  expect_broken("storage s2 bytes=1024", "storage s2 bytes=1024 device", "memory of a device, and there is none");
  expect_broken("alloc 1024 @s2 [2, 8)", "alloc 1024 @s2 [2, 8) device", "allocated in the other memory");
  expect_broken("aten::mm(%1, %2)", "aten::mm(%1, %3)", "reads %3 before it is made");
  expect_broken("alloc 65536 [1, 2)", "alloc 65536 [1, 1)", "allocation of call 0 lives in [1, 1)");
  expect_broken("alloc 65536 [1, 2)", "alloc 65536 @s0 [1, 2)", "external and allocated");
  expect_broken("alloc 65536 [1, 2)", "alloc 65536 @s2 [1, 2)", "allocated twice");
  expect_broken("batch \"0\"", "parameter \"model.weight\"", "appears twice");
  expect_broken("aten::sum(", "sum(", "op name 'sum'");
}

TEST(TraceDifference, SaysWhatChanged) {
  const Trace trace = parse_trace(kTraceText);
  EXPECT_EQ(first_difference(trace, trace), "");
  const auto difference = [&](const auto& change) {
    Trace other = trace;
    change(other);
    return first_difference(trace, other);
  };
  EXPECT_EQ(difference([](Trace& t) { t.calls[0].op = "aten::bmm"; }),
            "call 0 was aten::mm and then aten::bmm (in model)");
  EXPECT_EQ(difference([](Trace& t) { t.calls[1].args[1] = WrappedNumber{0.25}; }),
            "call 1 aten::mul_.Tensor (in 'model') got 0.5 and then 0.25 as argument 1");
  EXPECT_EQ(difference([](Trace& t) { t.calls.pop_back(); }), "3 calls and then 2");
  EXPECT_EQ(difference([](Trace& t) { t.allocations[1].bytes = 1; }),
            "allocation 0 was 1024 B in call 0 and then 1 B in call 0");
  EXPECT_EQ(difference([](Trace& t) { t.reads.emplace_back().call = CallId(0); }),
            "the step read other values on the host");
  // Which line calls the step, clocks and scratch are not the step.
  const auto reading = [](const char* line) {
    Trace read = parse_trace(kTraceText);
    read.reads.push_back({.call = CallId(0), .source = line});
    return read;
  };
  EXPECT_EQ(first_difference(reading("train.py:1"), reading("train.py:2")), "");
  EXPECT_EQ(difference([](Trace& t) { t.allocations[0].last = 3; }), "");
  EXPECT_EQ(difference([](Trace& t) { t.allocations[0].bytes = 1; }), "") << "a kernel's own";
  EXPECT_EQ(difference([](Trace& t) { t.scratch.clear(); }), "");
}

TEST(Trace, ViewsAreCallsThatOnlyMakeWindows) {
  const Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=64 external
storage s1 bytes=64
%0: f32[4, 4] @s0 = batch "0"
call 0 %1: f32[4, 4](1, 4) @s0 = aten::t(%0) | forward ""
call 1 %2: f32[4, 4] @s1 = aten::clone(%1) | forward ""
call 2 %2 = aten::add_.Tensor(%2, %0, 1) writes %2 | forward ""
call 3 = aten::_assert_async(%0) | forward ""
ticks 1
)");
  EXPECT_TRUE(is_view(trace, trace.calls[0]));
  EXPECT_FALSE(is_view(trace, trace.calls[1]));
  EXPECT_FALSE(is_view(trace, trace.calls[2]));
  EXPECT_FALSE(is_view(trace, trace.calls[3]));
}

TEST(Value, ExtentAndContiguity) {
  Value value{StorageId(0), DType::kF32, {2, 3}, {3, 1}, 5, false, false};
  EXPECT_EQ(extent_of(value), 11);
  EXPECT_TRUE(is_contiguous(value));
  value.strides = {1, 2};
  EXPECT_EQ(extent_of(value), 11);
  EXPECT_FALSE(is_contiguous(value));
  value.sizes = {0, 3};
  EXPECT_EQ(extent_of(value), 5);
}

TEST(DTypes, NamesRoundTrip) {
  for (int i = 0; i < 14; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0);
  }
  EXPECT_EQ(dtype_from_name("f12"), std::nullopt);
}

}  // namespace
}  // namespace stepc
