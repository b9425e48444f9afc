// Programs and their texts. The groups of tests/codegen come back from their texts too: see expect_kernel().
#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "loops/loop_program.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// Has a line of every form.
const std::string kText = R"(stepc.loops 1
buffer b0: f32 input 240
buffer b1: i64 input 6
buffer b2: bf16 output 240
buffer b3: f32 output 240
buffer b4: f32 scratch 40 at 64
buffer b5: bool local 40
scratch 256
in place b0 b3
phase items 2 grain 68
  i3 = i1 / 1 % 3
  i4 = to 7
  v0: f32 = constant -0.0
  v1 = loop i0 item
    v2 = loop i1 chunk 3 of 6
      v3: f32 = accumulator sum from -0.0
      v4: i64 = accumulator max from -9223372036854775808
      v5: i64 = load b1[i1]
      v6: bool = lt v5 v5
      v7 = accumulate v4 v5
      v8 = loop i2 to 40 vector
        v9: f32 = load b0[i2 + 40 + v5*40] where v6
        v10: f32 = load b0[i1*40 + i2]
        v11 = accumulate_product v3 v9 v10
        v12: f32 = round_to v10 bf16
        v13 = store v12 to b2[i1*40 + i2]
        v14 = store v6 to b5[i2]
        v15 = store v10 to b3[i1*40 + i2]
      v16 = end
      v17: f32 = finish v3
      v18: i64 = index i1 + i3*4 + -2
      v19: i32 = bits v17
      v20: f64 = convert v18
      v21: f32 = select v6 v17 v0
      v22: f32 = fma v21 v21 v0
      v23 = store v22 to b4[39]
    v24 = end
  v25 = end
phase items 1 grain 1
  v0 = loop i0 item vector
  v1 = end
)";

TEST(LoopProgramText, ReadsBackAsItWasPrinted) {
  const LoopProgram program = parse_loop_program(kText);
  EXPECT_EQ(to_text(program), kText);
  EXPECT_EQ(program.scratch_bytes, 256);
  EXPECT_EQ(program.phases[0].variables[3], (LoopVariable{LoopVariable::Kind::kDigit, 3, false, 1, 1, 1}));
  EXPECT_EQ(program.phases[0].instructions[9].indirect, 40);
  EXPECT_EQ(parse_loop_program("stepc.loops 1\n"), LoopProgram());
}

TEST(LoopProgramText, EveryBitOfAConstantReturns) {
  LoopProgram program = parse_loop_program(kText);
  LoopInstruction& constant = program.phases[0].instructions[0];
  std::mt19937_64 random(7);
  std::vector<uint64_t> patterns = {0,
                                    1,
                                    uint64_t{1} << 63,
                                    std::bit_cast<uint64_t>(HUGE_VAL),
                                    std::bit_cast<uint64_t>(double{NAN}),
                                    std::bit_cast<uint64_t>(-double{NAN}),
                                    0x7FF8000000000123,
                                    0xFFF4000000000001,
                                    std::bit_cast<uint64_t>(1e16),
                                    std::bit_cast<uint64_t>(double{0.1F})};
  for (int i = 0; i < 200; ++i) patterns.push_back(random());
  for (uint64_t pattern : patterns) {
    constant.real = std::bit_cast<double>(pattern);
    EXPECT_EQ(parse_loop_program(to_text(program)), program) << pattern;
  }
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kText;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LoopProgramText, SaysWhatIsWrong) {
  EXPECT_USER_ERROR(parse_loop_program(""), "loop text, line 0: expected 'stepc.loops 1'");
  EXPECT_USER_ERROR(parse_loop_program(changed("loops 1", "loops 2")), "line 1: expected 'stepc.loops 1'");
  EXPECT_USER_ERROR(parse_loop_program(changed("b1: i64", "b2: i64")), "line 3: expected b1");
  EXPECT_USER_ERROR(parse_loop_program(changed("f32 input", "f33 input")), "line 2: expected a dtype");
  EXPECT_USER_ERROR(parse_loop_program(changed("bool local", "bool lokal")), "'lokal' is no kind of buffer");
  EXPECT_USER_ERROR(parse_loop_program(changed("in place b0 b3", "in place b0 b8")), "line 9: there is no b8");
  EXPECT_USER_ERROR(parse_loop_program(changed("v5: i64", "v6: i64")), "line 18: expected v5");
  EXPECT_USER_ERROR(parse_loop_program(changed("fma v21 v21", "fmb v21 v21")), "line 35: there is no loop op 'fmb'");
  EXPECT_USER_ERROR(parse_loop_program(changed("v13 = store", "v13: f32 = store")), "store has no value");
  EXPECT_USER_ERROR(parse_loop_program(changed("i3 = i1", "i5 = i1")), "i3 is missing");
  EXPECT_USER_ERROR(parse_loop_program(changed("lt v5 v5", "lt v5 v6")), "there is no v6");
  EXPECT_USER_ERROR(parse_loop_program(changed("v25 = end", "v25 = end of it")), "unexpected text");
  EXPECT_USER_ERROR(parse_loop_program(changed("sum from -0.0", "sum from 0")), "expected a number with a point");
}

TEST(LoopProgramText, VerifiesWhatItReads) {
  EXPECT_USER_ERROR(parse_loop_program(changed("v25 = end\n", "")), "a loop is not closed");
  EXPECT_USER_ERROR(parse_loop_program(changed("b4[39]", "b4[40]")), "reaches 40 of 40");
  EXPECT_USER_ERROR(parse_loop_program(changed("b4[39]", "b4[-1]")), "reaches -1 of 40");
  EXPECT_USER_ERROR(parse_loop_program(changed("scratch 256", "scratch 64")), "ends behind the scratch memory");
  EXPECT_USER_ERROR(parse_loop_program(changed("in place b0 b3", "in place b3 b0")), "in place: b3");
  EXPECT_USER_ERROR(parse_loop_program(changed("i1 / 1 % 3", "i1 / 0 % 3")), "i3: 3 turns");
  EXPECT_USER_ERROR(parse_loop_program(changed("i1 / 1 % 3", "i9 / 1 % 3")), "i3: a digit of i9");
  EXPECT_USER_ERROR(parse_loop_program(changed("i1 + i3*4", "i3*4 + i1")), "terms are not in order");
  EXPECT_USER_ERROR(parse_loop_program(changed("i3*4", "i3*4611686018427387904")), "an index leaves 64 bits");
  EXPECT_USER_ERROR(parse_loop_program(changed("v17: f32 = finish v3", "v17: f32 = abs v3")), "v3 is no value");
  EXPECT_USER_ERROR(parse_loop_program(changed("finish v3", "finish v0")), "v0 is no accumulator");
  EXPECT_USER_ERROR(parse_loop_program(changed("v19: i32", "v19: i64")), "v19 bits: i64 of f32");
  EXPECT_USER_ERROR(parse_loop_program(changed("fma v21 v21 v0", "bit_and v21 v21")), "does not take f32");
  EXPECT_USER_ERROR(parse_loop_program(changed("v5: i64 = load", "v5: f32 = load")), "load: is f32");
}

// Whatever is damaged, it is a program or an error of the user.
TEST(LoopProgramText, DamagedTextsAreErrorsOrPrograms) {
  std::mt19937_64 random(11);
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = kText;
    for (uint64_t k = 0; k <= random() % 3; ++k) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text.erase(at, 1 + random() % 5);
          break;
        case 1:
          text[at] = kText[random() % kText.size()];
          break;
        case 2:
          text.insert(at, "9");
          break;
        default:
          text.insert(at, kText.substr(random() % kText.size(), random() % 30));
      }
    }
    try {
      const LoopProgram program = parse_loop_program(text);
      EXPECT_EQ(parse_loop_program(to_text(program)), program) << text;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000U);
}

}  // namespace
}  // namespace stepc
