#include "blocked/attention.h"

#include <array>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "tests/blocked/reference.h"

namespace stepc::blocked {
namespace {

HeadStrides strides_of(const at::Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }
HeadTensor heads(const at::Tensor& x) { return {x.data_ptr(), strides_of(x)}; }
HeadResult head_result(const at::Tensor& x) { return {x.data_ptr(), strides_of(x)}; }

// (batch, heads, sequence, dim) as a view of either order.
at::Tensor head_tensor(Random& random, int64_t batch, int64_t heads, int64_t sequence, int64_t dim, Number number) {
  if (random.coin()) return random_tensor({batch, heads, sequence, dim}, number);
  return random_tensor({batch, sequence, heads, dim}, number).transpose(1, 2);
}

// A call with the tensors that it points to, and the float64 bias that says the same.
struct Case {
  Attention call;
  at::Tensor q, k, v, gradient, bias, mask;
  std::vector<at::Tensor> numbers = {};  // of documents and places
};

struct Answer {
  at::Tensor out, logsumexp, q, k, v;
};

at::Tensor repeated(const at::Tensor& x, int64_t heads) { return x.repeat_interleave(heads / x.size(1), 1); }
at::Tensor summed(const at::Tensor& x, int64_t heads) {
  return x.reshape({x.size(0), heads, x.size(1) / heads, x.size(2), x.size(3)}).sum(2);
}

Answer exact(const Case& c) {
  const int64_t heads = c.q.size(1);
  const at::Tensor q = c.q.to(at::kDouble), k = repeated(c.k.to(at::kDouble), heads);
  const at::Tensor v = repeated(c.v.to(at::kDouble), heads), gradient = c.gradient.to(at::kDouble);
  const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * c.call.scale + c.bias;
  const at::Tensor empty = at::isinf(scores.amax(-1, true));
  const at::Tensor weights = at::where(empty, at::zeros({}, at::kDouble), at::softmax(scores, -1));
  Answer answer;
  answer.out = at::matmul(weights, v);
  answer.logsumexp = at::where(empty.squeeze(-1), at::zeros({}, at::kDouble), at::logsumexp(scores, -1));
  const at::Tensor incoming = at::matmul(gradient, v.transpose(-1, -2));
  const at::Tensor delta = (gradient * answer.out).sum(-1, true);
  const at::Tensor score_gradients = weights * (incoming - delta) * c.call.scale;
  answer.q = at::matmul(score_gradients, k);
  answer.k = summed(at::matmul(score_gradients.transpose(-1, -2), q), c.k.size(1));
  answer.v = summed(at::matmul(weights.transpose(-1, -2), gradient), c.k.size(1));
  return answer;
}

Answer atens(const Case& c) {
  const int64_t heads = c.q.size(1);
  const at::Tensor k = repeated(c.k, heads), v = repeated(c.v, heads), bias = c.bias.to(at::kFloat);
  const auto [out, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(c.q, k, v, 0, false, bias, c.call.scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      c.gradient, c.q, k, v, out, logsumexp, 0, false, bias, c.call.scale);
  return {out, logsumexp, dq, summed(dk.to(at::kDouble), c.k.size(1)).to(c.k.scalar_type()),
          summed(dv.to(at::kDouble), c.k.size(1)).to(c.k.scalar_type())};
}

Answer ours(const Case& c, const MicroKernels& kernels, int threads = 2) {
  Answer answer{at::full_like(c.gradient, 7), at::full({c.q.size(0), c.q.size(1), c.q.size(2)}, 7.0, at::kFloat),
                at::full_like(c.q, 7), at::full_like(c.k, 7), at::full_like(c.v, 7)};
  const at::Tensor forward = dirty_memory(workspace_bytes(c.call, threads));
  attention(c.call, head_result(answer.out), answer.logsumexp.data_ptr<float>(), kernels, threads, forward.data_ptr());
  const AttentionGradient gradient{heads(c.gradient),     heads(answer.out),     answer.logsumexp.data_ptr<float>(),
                                   head_result(answer.q), head_result(answer.k), head_result(answer.v)};
  const at::Tensor backward = dirty_memory(backward_workspace_bytes(c.call, threads));
  attention_backward(c.call, gradient, kernels, threads, backward.data_ptr());
  return answer;
}

void add_visibility(Random& random, Case& c) {
  Attention& call = c.call;
  if (random.coin()) call.after = random.one_of<int64_t>({0, 0, 0, 3});
  if (random.between(0, 3) == 0) call.before = random.between(0, 150);
  const at::Tensor i = at::arange(call.queries).unsqueeze(1), j = at::arange(call.keys).unsqueeze(0);
  at::Tensor seen = at::ones({call.queries, call.keys}, at::kBool);
  if (call.after >= 0) seen = seen.logical_and(j <= i + call.after);
  if (call.before >= 0) seen = seen.logical_and(j >= i - call.before);
  c.bias = at::zeros({call.batch, call.heads, call.queries, call.keys}, at::kDouble);
  c.bias.masked_fill_(seen.logical_not(), -INFINITY);
}

void add_mask(Random& random, Case& c) {
  using Kind = AttentionMask::Kind;
  Attention& call = c.call;
  const Kind kind = random.one_of<Kind>({Kind::kNone, Kind::kNone, Kind::kBool, Kind::kF32, Kind::kBf16});
  if (kind != Kind::kNone) {
    const at::Tensor small = at::randn(
        {random.coin() ? call.batch : 1, random.coin() ? call.heads : 1, random.coin() ? call.queries : 1, call.keys});
    if (kind == Kind::kBool) c.mask = small > -0.8;
    if (kind == Kind::kF32) c.mask = small;
    if (kind == Kind::kBf16) c.mask = small.to(at::kBFloat16);
    if (kind != Kind::kBool && random.coin()) c.mask.masked_fill_(small < -1, -INFINITY);
    const at::Tensor key = at::arange(call.keys), query = at::arange(c.mask.size(2)).unsqueeze(1);
    const at::Tensor hidden = random.one_of<at::Tensor>(
        {key<0, key> query, at::logical_or(key<query - 70, key> query + 20), key >= call.keys / 3});
    c.mask.masked_fill_(hidden, kind == Kind::kBool ? at::Scalar(false) : at::Scalar(-INFINITY));
    const at::Tensor seen = c.mask.expand({call.batch, call.heads, call.queries, call.keys});
    call.mask = {kind, seen.data_ptr(), seen.stride(0), seen.stride(1), seen.stride(2), seen.stride(3)};
    if (kind == Kind::kBool) {
      c.bias.masked_fill_(seen.logical_not(), -INFINITY);
    } else {
      c.bias += seen;
    }
  }
}

// Packed rows: documents of a few tokens, whose places begin anew in each, or run on.
void add_documents(Random& random, Case& c) {
  Attention& call = c.call;
  const bool is_square = call.queries == call.keys;
  const auto numbers = [&](int64_t tokens) {
    at::Tensor begins = (at::rand({random.coin() ? call.batch : 1, tokens}) < 0.05).to(at::kLong);
    const at::Tensor documents = begins.cumsum(1);
    const at::Tensor places =
        random.coin() ? at::arange(tokens).unsqueeze(0) : begins.cumsum(1) * -1000 + at::arange(tokens);
    return std::pair(documents, places.contiguous());
  };
  const auto [documents, places] = numbers(call.queries);
  const auto [others, other_places] = is_square ? std::pair(documents, places) : numbers(call.keys);
  c.numbers = {documents, others, places, other_places};
  const auto of = [](const at::Tensor& x) {
    return TokenNumbers{x.data_ptr<int64_t>(), x.size(0) == 1 ? 0 : x.stride(0), x.stride(1)};
  };
  call.mask.kind = AttentionMask::Kind::kDocuments;
  call.mask.documents = {of(documents), of(others), of(places), of(other_places), random.coin()};
  const auto of_queries = [](const at::Tensor& x) { return x.unsqueeze(1).unsqueeze(3); };
  const auto of_keys = [](const at::Tensor& x) { return x.unsqueeze(1).unsqueeze(2); };
  at::Tensor seen = of_queries(documents) == of_keys(others);
  if (call.mask.documents.has_places) seen = seen.logical_and(of_keys(other_places) <= of_queries(places));
  c.bias.masked_fill_(seen.logical_not(), -INFINITY);
}

Case random_case(Random& random, int64_t longest) {
  Case c;
  Attention& call = c.call;
  call.type = random.coin() ? Number::kBf16 : Number::kF32;
  call.batch = random.between(1, 2);
  call.key_heads = random.between(1, 2);
  call.heads = call.key_heads * random.between(1, 3);
  call.queries = random.one_of<int64_t>({1, 2, 9, 16, 17, 40, 63, 64, 65, 90, 128, 150, random.between(1, longest)});
  call.keys = random.coin() ? call.queries : random.between(1, longest);
  call.dim = random.one_of<int64_t>({16, 24, 40, 64, 80, 128, 256});
  call.value_dim = random.between(0, 3) == 0 ? 48 : call.dim;
  call.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(call.dim)));
  c.q = head_tensor(random, call.batch, call.heads, call.queries, call.dim, call.type);
  c.k = head_tensor(random, call.batch, call.key_heads, call.keys, call.dim, call.type);
  c.v = head_tensor(random, call.batch, call.key_heads, call.keys, call.value_dim, call.type);
  c.gradient = head_tensor(random, call.batch, call.heads, call.queries, call.value_dim, call.type);
  call.q = heads(c.q);
  call.k = heads(c.k);
  call.v = heads(c.v);
  add_visibility(random, c);
  if (random.between(0, 3) == 0)
    add_documents(random, c);
  else
    add_mask(random, c);
  return c;
}

void expect_near(const Answer& got, const Case& c, const std::string& what) {
  // ATen's kernel has one head size for all: otherwise its usual error is the measure.
  const bool peers = c.call.dim == c.call.value_dim;
  const Answer reference = exact(c), peer = peers ? atens(c) : reference;
  const double floor = (c.call.type == Number::kF32 ? 3e-6 : 3e-3) * (peers ? 1 : 2);
  using Field = at::Tensor Answer::*;
  for (const auto& [field, name] : {std::pair<Field, const char*>{&Answer::out, "out"},
                                    {&Answer::logsumexp, "logsumexp"},
                                    {&Answer::q, "q"},
                                    {&Answer::k, "k"},
                                    {&Answer::v, "v"}}) {
    const at::Tensor& expected = reference.*field;
    double limit = std::max(2 * distance(peer.*field, expected), floor);
    // A gradient that is nearly zero everywhere is all rounding: measure it by the gradient of v.
    double error = distance(got.*field, expected);
    const double size = expected.norm().item<double>(), scale = reference.v.norm().item<double>();
    if (size < 1e-3 * scale) error *= size / scale;
    ASSERT_LE(error, limit) << name << " of " << what;
  }
}

TEST(Attention, EqualsTheReferenceOverRandomCalls) {
  const OneThread one;
  at::manual_seed(1);
  Random random(7);
  const std::vector<MicroKernels> all = machines();
  for (int round = 0; round < 120; ++round) {
    const Case c = random_case(random, 300);
    const MicroKernels& kernels = all[static_cast<size_t>(round) % all.size()];
    const std::string what = str("round {}: {} queries, {} keys, {} of {} heads, dim {}, after {}, before {} on {}",
                                 round, c.call.queries, c.call.keys, c.call.key_heads, c.call.heads, c.call.dim,
                                 c.call.after, c.call.before, to_text(features_of(kernels)));
    expect_near(ours(c, kernels, static_cast<int>(random.between(1, 3))), c, what);
  }
}

TEST(Attention, LongSequencesRepeatTheirBitsForAnyThreads) {
  at::manual_seed(2);
  Random random(3);
  for (const Number number : {Number::kF32, Number::kBf16}) {
    Case c;
    c.call.type = number;
    c.call.batch = 1;
    c.call.heads = 2;
    c.call.key_heads = 1;
    c.call.queries = c.call.keys = 1100;
    c.call.dim = c.call.value_dim = 64;
    c.call.scale = 0.125F;
    c.call.after = 0;
    c.q = head_tensor(random, 1, 2, 1100, 64, number);
    c.k = head_tensor(random, 1, 1, 1100, 64, number);
    c.v = head_tensor(random, 1, 1, 1100, 64, number);
    c.gradient = head_tensor(random, 1, 2, 1100, 64, number);
    c.call.q = heads(c.q);
    c.call.k = heads(c.k);
    c.call.v = heads(c.v);
    c.bias = at::zeros({1100, 1100}, at::kDouble);
    c.bias.masked_fill_(at::ones({1100, 1100}, at::kBool).tril().logical_not(), -INFINITY);
    c.bias = c.bias.expand({1, 2, 1100, 1100});
    const Answer first = ours(c, probe_micro_kernels(), 1);
    expect_near(first, c, "1100 x 1100");
    for (const int threads : {2, 3, 2}) {
      const Answer again = ours(c, probe_micro_kernels(), threads);
      EXPECT_EQ(bytes_of_tensor(again.out), bytes_of_tensor(first.out));
      EXPECT_EQ(bytes_of_tensor(again.q), bytes_of_tensor(first.q));
      EXPECT_EQ(bytes_of_tensor(again.k), bytes_of_tensor(first.k));
      EXPECT_EQ(bytes_of_tensor(again.v), bytes_of_tensor(first.v));
    }
  }
}

TEST(Attention, RowsThatSeeNothingAreZeroAsInPyTorch) {
  const OneThread one;
  at::manual_seed(4);
  Random random(5);
  for (const MicroKernels& kernels : machines()) {
    for (const Number number : {Number::kF32, Number::kBf16}) {
      Case c;
      c.call.type = number;
      c.call.batch = c.call.heads = c.call.key_heads = 1;
      c.call.queries = c.call.keys = 5;
      c.call.dim = c.call.value_dim = 16;
      c.q = random_tensor({1, 1, 5, 16}, number);
      c.k = random_tensor({1, 1, 5, 16}, number);
      c.v = random_tensor({1, 1, 5, 16}, number);
      c.gradient = random_tensor({1, 1, 5, 16}, number);
      c.call.q = heads(c.q);
      c.call.k = heads(c.k);
      c.call.v = heads(c.v);
      c.mask = at::ones({5, 5}, at::kBool);
      c.mask[2].fill_(false);
      c.call.mask = {AttentionMask::Kind::kBool, c.mask.data_ptr(), 0, 0, 5, 1};
      const Answer answer = ours(c, kernels);
      const at::Tensor theirs = at::scaled_dot_product_attention(c.q, c.k, c.v, c.mask, 0, false, 1.0);
      EXPECT_TRUE(at::equal(answer.out[0][0][2], theirs[0][0][2]));
      EXPECT_EQ(answer.out[0][0][2].abs().sum().item<float>(), 0);
      EXPECT_EQ(answer.logsumexp[0][0][2].item<float>(), 0);
      EXPECT_EQ(answer.q[0][0][2].abs().sum().item<float>(), 0);
      EXPECT_LE(distance(answer.out, theirs), 1e-2);
      EXPECT_FALSE(at::isnan(answer.k).any().item<bool>());
    }
  }
}

TEST(Attention, TheLowestNumberAsAMaskIsAnAverageAndNanStays) {
  at::manual_seed(6);
  for (const MicroKernels& kernels : machines()) {
    Case c;
    c.call.batch = c.call.heads = c.call.key_heads = 1;
    c.call.queries = c.call.keys = 40;
    c.call.dim = c.call.value_dim = 16;
    c.q = at::randn({1, 1, 40, 16});
    c.k = at::randn({1, 1, 40, 16});
    c.v = at::randn({1, 1, 40, 16});
    c.gradient = at::randn({1, 1, 40, 16});
    c.q[0][0][7][3] = NAN;
    c.call.q = heads(c.q);
    c.call.k = heads(c.k);
    c.call.v = heads(c.v);
    c.mask = at::zeros({40, 40});
    c.mask[2].fill_(std::numeric_limits<float>::lowest());
    c.call.mask = {AttentionMask::Kind::kF32, c.mask.data_ptr(), 0, 0, 40, 1};
    const Answer answer = ours(c, kernels);
    EXPECT_LE(distance(answer.out[0][0][2], c.v[0][0].mean(0)), 1e-6);
    EXPECT_TRUE(at::isnan(answer.out[0][0][7]).all().item<bool>());
    EXPECT_EQ(at::isnan(answer.out).sum().item<int64_t>(), 16);
  }
}

// A row's logsumexp is rounded, here by thousands: a score may seem to lie that far above it.
TEST(Attention, GradientsOfHugeScoresAreFinite) {
  at::manual_seed(7);
  for (const MicroKernels& kernels : machines())
    for (const Number number : {Number::kF32, Number::kBf16}) {
      Case c;
      c.call.type = number;
      c.call.batch = c.call.heads = c.call.key_heads = 1;
      c.call.queries = c.call.keys = 40;
      c.call.dim = c.call.value_dim = 16;
      c.call.scale = 1 / std::sqrt(8.0F);
      c.q = random_tensor({1, 1, 40, 16}, number) * 3e5;
      c.k = random_tensor({1, 1, 40, 16}, number) * 3e5;
      c.v = random_tensor({1, 1, 40, 16}, number);
      c.gradient = random_tensor({1, 1, 40, 16}, number);
      c.call.q = heads(c.q);
      c.call.k = heads(c.k);
      c.call.v = heads(c.v);
      const Answer answer = ours(c, kernels);
      for (const at::Tensor& one : {answer.out, answer.q, answer.k, answer.v})
        EXPECT_TRUE(at::isfinite(one).all().item<bool>());
      EXPECT_LE(answer.v.abs().max().item<float>(), c.gradient.abs().sum().item<float>());
    }
}

// All queries see keys 70 to 180 of 300: what lies in other blocks of keys is NaN here, and left out.
TEST(Attention, KeysThatTheMaskHidesFromABlockOfQueriesAreNotRead) {
  at::manual_seed(8);
  using Kind = AttentionMask::Kind;
  for (const MicroKernels& kernels : machines()) {
    for (const Kind kind : {Kind::kBool, Kind::kF32, Kind::kBf16}) {
      Case c;
      c.call.batch = c.call.heads = c.call.key_heads = 1;
      c.call.queries = 100;
      c.call.keys = 300;
      c.call.dim = c.call.value_dim = 16;
      c.q = at::randn({1, 1, 100, 16});
      c.k = at::full({1, 1, 300, 16}, NAN);
      c.v = at::full({1, 1, 300, 16}, NAN);
      c.gradient = at::randn({1, 1, 100, 16});
      const at::Tensor k = c.k.slice(2, 64, 192), v = c.v.slice(2, 64, 192);
      k.copy_(at::randn_like(k));
      v.copy_(at::randn_like(v));
      const at::Tensor seen = at::zeros({300}, at::kBool);
      seen.slice(0, 70, 180).fill_(true);
      const at::Tensor bias = at::zeros({300}).masked_fill_(seen.logical_not(), -INFINITY);
      c.mask = kind == Kind::kBool ? seen : kind == Kind::kF32 ? bias : bias.to(at::kBFloat16);
      c.call.mask = {kind, c.mask.data_ptr(), 0, 0, 0, 1};
      c.call.q = heads(c.q);
      c.call.k = heads(c.k);
      c.call.v = heads(c.v);
      const Answer answer = ours(c, kernels);
      const at::Tensor expected =
          at::softmax(at::matmul(c.q, k.transpose(-1, -2)) + bias.slice(0, 64, 192), -1).matmul(v);
      EXPECT_LE(distance(answer.out, expected), 1e-6);
      EXPECT_FALSE(at::isnan(answer.q).any().item<bool>());
      EXPECT_FALSE(at::isnan(answer.k.slice(2, 64, 192)).any().item<bool>());
      EXPECT_EQ(answer.k.slice(2, 192, 300).abs().sum().item<float>(), 0);
    }
  }
}

TEST(Attention, NothingToDo) {
  Case c;
  c.call.batch = c.call.heads = c.call.key_heads = 1;
  c.call.dim = c.call.value_dim = 16;
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{0, 3}, {3, 0}, {0, 0}}) {
    c.call.queries = queries;
    c.call.keys = keys;
    c.q = at::ones({1, 1, queries, 16});
    c.k = at::ones({1, 1, keys, 16});
    c.v = at::ones({1, 1, keys, 16});
    c.gradient = at::ones({1, 1, queries, 16});
    c.call.q = heads(c.q);
    c.call.k = heads(c.k);
    c.call.v = heads(c.v);
    const Answer answer = ours(c, probe_micro_kernels());
    for (const at::Tensor& tensor : {answer.out, answer.q, answer.k, answer.v}) {
      EXPECT_EQ(tensor.abs().sum().item<float>(), 0);
    }
  }
}

}  // namespace
}  // namespace stepc::blocked
