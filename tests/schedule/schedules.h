// Schedules as texts, for the tests.
#pragma once

#include <string_view>

namespace stepc {

// Every kind of line and every field; it means nothing.
inline constexpr std::string_view kEveryLine = R"(stepc.schedule 1
features bf16, avx512
threads 3
mesh dp_shard=2,tp=4
arena 4096
live bound 1024
layout "best_fit"
numbers 2
generator "default"
generator "a \"b\""
state none
state 00ff
buffer b0: input 256 of 0
buffer b1: arena 128 at 64
buffer b2: own 128
buffer b3: constant 4 = 61626364
operand %0: f32[4, 8] in b0
operand %1: f32[4, 8](1, 8)+2 in b0
operand %2: c64[2] in b1 conj neg
operand %3: bool[] in b3
operand %4: f32[0, 3] in b2
operand %5: i64[2] in b2
input 0: parameter "weight" %0 written part of <8/dp_shard, 8> sum(tp)
input 1: rng "" %5
i0: aten aten::frob_ (%0, %1) -> (%2, none) args(#0, [1, 2], t[#1, undefined], read(1, double), 2.5) results(#0, none) writes 0, 1 draws layout 1(1, 8) workspace 4096 128 allocations [64 at 128, 100 own] scratch 64 at 256 worker scratch 128 at 512 stream 1 call 17 number 0 work(1000000000.0, 0.5, 4096.0) | forward "model.proj"
i1: matmul mm.mm.add (%0, %1, %0, %3) -> (%2, %4) product 0^T x 1^T, 2 epilogues 0, none, none, none tile inputs 3(0, 1) tile outputs 0(8, 1), 1(0, 0) share scratch 64 at 0 | backward "model.proj" why "bf16 on the blocked kernel"
i2: generated exp (%0) -> (%2) program 0 | forward ""
i3: op sum (%0) -> (%4) {dims=[1], dtype=bf16, keep=true, value=0.5} | forward "a \"b\""
i4: attention attention (%0, %0, %0) -> (%2) | forward ""
i5: loss linear_cross_entropy (%0) -> (%2) chunks 1024 programs 0, none | forward ""
i6: copy "" (%0) -> (%2) | update ""
i7: guard "" () -> () number 1 expects true | update ""
i8: guard "" (%3) -> () | update ""
i9: event "optimizer step" () -> () event 3 in place | update ""
i10: pause "" (%0) -> () event 0 | update ""
i11: seed "" () -> (%5) | forward ""
i12: save_generator "" () -> () generator 0 state 1 | forward ""
i13: load_generator "" () -> () generator 1 state 0 | forward ""
i14: collective all_reduce (%0) -> (%0) {axes=[0, 1], ranks=8, reduce="sum"} | backward "" why "in place"
i15: send "" () -> () | backward ""
i16: receive "" () -> () | backward ""
i17: wait "" () -> () | backward ""
i18: record "" () -> () | backward ""
i19: call "" () -> () | backward ""
i20: nodes "mul+sum" (%0) -> (%2, %4) nodes 0 scratch 64 at 0 | update ""
output return %0 part of <8/dp_shard, 8>
output rebind %0 optimizer_state "exp_avg"
output rebind none gradient "weight"
output return none
output number %3
output number none = read(1, int)
output number none = 3 part of <>
host call 4 arg 2 instruction 3
host call 5 arg 1 inputs 1, 0
host call none arg 0 integer -7
program 0
  stepc.loops 1
  buffer b0: f32 input 32
  buffer b1: f32 output 32
  in place b0 b1
  phase items 4 grain 1
    v0 = loop i0 item
      v1 = loop i1 to 8 vector
        v2: f32 = load b0[i0*8 + i1]
        v3: f32 = exp v2
        v4 = store v3 to b1[i0*8 + i1]
      v5 = end
    v6 = end
nodes 0
  stepc.graph 1
  input %0: f32[32] = captured "0"
  %1: f32[32] = mul(%0, %0) | update ""
  %2: f32[] = sum(%1) {dims=[0], keepdim=false} | update ""
  return %1
  return %2
)";

// A step that could run: y = x * weight, e = exp(y) where y was, its sum is checked and returned, and the weight's
// gradient, of memory that outlives the step, comes by way of a call with a workspace.
inline constexpr std::string_view kTrainingStep = R"(stepc.schedule 1
features bf16, avx512
threads 3
arena 1024
live bound 384
layout "best_fit"
numbers 1
generator "default"
state none
buffer b0: input 256 of 0
buffer b1: input 128 of 1
buffer b2: arena 128 at 0
buffer b3: arena 128 at 0
buffer b4: arena 4 at 128
buffer b5: own 256
buffer b6: constant 4 = 0000803f
buffer b7: arena 1 at 192
buffer b8: arena 0 at 0
buffer b9: arena 128 at 256
operand %0: f32[8, 8] in b0
operand %1: f32[4, 8] in b1
operand %2: f32[4, 8] in b2
operand %3: f32[4, 8] in b3
operand %4: f32[] in b4
operand %5: f32[8, 8] in b5
operand %6: f32[] in b6
operand %7: bool[] in b7
operand %8: f32[0] in b8
operand %9: f32[4, 8] in b9
input 0: parameter "weight" %0 written
input 1: batch "0" %1
i0: save_generator "" () -> () generator 0 state 0 | forward ""
i1: matmul matmul (%1, %0) -> (%2) product 0 x 1^T scratch 128 at 128 | forward "proj" why "bf16 on the blocked kernel"
i2: generated exp (%2) -> (%3) program 0 | forward "proj"
i3: op sum (%3) -> (%4) {dims=[0, 1]} | forward "loss"
i4: op lt (%4, %6) -> (%7) | forward "loss"
i5: guard "" (%7) -> () | forward "loss"
i6: aten aten::_local_scalar_dense (%4) -> () args(#0) call 5 number 0 | forward "loss"
i7: guard "" () -> () number 0 expects 1.0 | forward "loss"
i8: aten aten::frob (%1, %3, %8) -> (%5, %9) args(#0, #1, t[#2], read(0, double)) results(#0, #1) allocations [256 own, 64 at 192, 128 at 256] worker scratch 128 at 512 call 6 | backward "proj"
i9: copy "" (%9) -> (%1) | backward ""
i10: aten aten::add_ (%0, %5) -> (%0) args(#0, #1, 0.5) writes 0 call 7 | update ""
output return %1
output return none
output rebind %5 gradient "weight"
output number %4
output number none = read(0, double)
host call 7 arg 2 instruction 10
program 0
  stepc.loops 1
  buffer b0: f32 input 32
  buffer b1: f32 output 32
  in place b0 b1
  phase items 4 grain 1
    v0 = loop i0 item
      v1 = loop i1 to 8 vector
        v2: f32 = load b0[i0*8 + i1]
        v3: f32 = exp v2
        v4 = store v3 to b1[i0*8 + i1]
      v5 = end
    v6 = end
)";

}  // namespace stepc
