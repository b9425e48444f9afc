#include "tests/engine/random_program.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

namespace stepc::test {

namespace {

// As is_alias_of, which compares addresses: a traced step's tensors have none yet.
bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

constexpr int64_t kMaxElements = 256;

// Places among what is given.
constexpr size_t kWeight = 0, kBias = 1, kTable = 2, kBatch = 5;

// The names by which operations() reads.
using M = Machine;
using I = Instruction;

bool fits(const at::Tensor& b, const at::Tensor& a) {
  if (b.dim() > a.dim()) return false;
  for (int64_t d = 1; d <= b.dim(); ++d)
    if (b.size(-d) != a.size(-d) && b.size(-d) != 1) return false;
  return true;
}

int64_t dim_of(const at::Tensor& t, const I& i) { return t.dim() == 0 ? 0 : i.n % t.dim(); }

at::Tensor at_least_1d(const at::Tensor& t) { return t.dim() == 0 ? t.reshape({1}) : t; }

template <class F>
void unary(M& m, const I& i, F f) {
  const Value a = m.pick(i.a);
  m.push(f(M::number(a)), {a});
}
template <class F>
void binary(M& m, const I& i, F f) {
  const Value a = m.pick(i.a);
  const Value b = m.pick(i.b);
  const at::Tensor x = M::number(a);
  m.push(f(x, M::fit(b, x)), {a, b});
}
template <class F>
void view(M& m, const I& i, F f, bool writable = true) {
  const Value a = m.pick(i.a);
  m.push_view(f(at_least_1d(a.tensor)), a, writable);
}
// `saves`: the operation's backward pass needs what was written.
template <class F>
void in_place(M& m, const I& i, F f, bool saves = false) {
  const Value b = m.pick(i.b);
  const Value a = m.target(m.pick(i.a));
  at::Tensor other = M::fit(b, a.tensor);
  if (b.memory == a.memory) other = other.clone();
  f(a.tensor, other);
  if (!a.tensor.requires_grad()) return;
  b.memory->saved = true;
  a.memory->saved = a.memory->saved || saves;
}

bool has_graph(const at::Tensor& t) { return t.requires_grad() && at::GradMode::is_enabled(); }
at::Tensor scalar_loss(const at::Tensor& t) { return t.to(at::kFloat).tanh().mean(); }

constexpr std::array kOperations = std::to_array<Operation>({
    // views and aliases
    {"transpose", 2, [](M& m, const I& i) { view(m, i, [](auto t) { return t.transpose(0, -1); }); }},
    {"select", 2, [](M& m, const I& i) { view(m, i, [&](auto t) { return t.select(dim_of(t, i), i.b % t.size(dim_of(t, i))); }); }},
    {"narrow", 2, [](M& m, const I& i) {
       view(m, i, [&](auto t) {
         const int64_t d = dim_of(t, i);
         const int64_t start = i.b % t.size(d);
         return t.narrow(d, start, (t.size(d) - start + 1) / 2);
       });
     }},
    {"slice", 2, [](M& m, const I& i) { view(m, i, [&](auto t) { return t.slice(dim_of(t, i), 0, std::nullopt, 2); }); }},
    {"flatten", 1, [](M& m, const I& i) { view(m, i, [](auto t) { return t.reshape({-1}); }); }},
    {"unsqueeze", 1, [](M& m, const I& i) { view(m, i, [](auto t) { return t.dim() < 3 ? t.unsqueeze(0) : t[0]; }); }},
    {"diagonal", 1, [](M& m, const I& i) { view(m, i, [](auto t) { return t.dim() < 2 ? t.alias() : t.diagonal(0, 0, 1); }); }},
    {"expand", 1, [](M& m, const I& i) { view(m, i, [](auto t) { return t.reshape({1, -1}).expand({2, -1}); }, false); }},
    {"as_strided", 1, [](M& m, const I& i) {
       view(m, i, [](auto t) { return t.numel() < 4 ? t : t.contiguous().as_strided({2, 2}, {1, 2}); }, false);
     }},
    {"chunk", 1, [](M& m, const I& i) { view(m, i, [&](auto t) { return t.chunk(2, dim_of(t, i)).back(); }, false); }},
    {"view_dtype", 1, [](M& m, const I& i) {
       view(m, i, [](auto t) { return t.scalar_type() == at::kFloat ? t.detach().view(at::kInt) : t.detach(); }, false);
     }},
    {"detach", 2, [](M& m, const I& i) { view(m, i, [](auto t) { return t.detach(); }); }},
    {"forget", 3, [](M& m, const I& i) { m.forget(i.a); }},

    // arithmetic
    {"add", 3, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return x + y; }); }},
    {"sub", 2, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return x.sub(y, 0.5); }); }},
    {"mul", 3, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return x * y; }); }},
    {"div", 1, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return x / (y.abs() + 1); }); }},
    {"where", 2, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return at::where(x > y, x, y); }); }},
    {"cat", 1, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return at::cat({x.flatten(), y.flatten()}); }); }},
    {"matmul", 3, [](M& m, const I& i) {
       binary(m, i, [](auto x, auto y) { return x.reshape({-1, 1}).slice(0, 0, 8).matmul(y.reshape({1, -1}).slice(1, 0, 8)); });
     }},
    {"linear", 3, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       at::Tensor x = M::number(a).to(at::kFloat);
       if (x.dim() == 0 || x.size(-1) != 4) x = x.mean().expand({2, 4});
       const Value weight = m.given(kWeight);
       const Value bias = m.given(kBias);
       m.push(at::linear(x, weight.tensor, bias.tensor), {a, weight, bias});
     }},
    {"embedding", 2, [](M& m, const I& i) {
       const at::Tensor x = M::number(m.pick(i.a)).detach();
       const Value table = m.given(kTable);
       m.push(at::embedding(table.tensor, x.tanh().abs().nan_to_num().mul(4).to(at::kLong)), {table});
     }},
    {"tanh", 2, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.tanh(); }); }},
    {"exp", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.clamp(-3, 3).exp(); }); }},
    {"relu", 2, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.relu(); }); }},
    {"gelu", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return at::gelu(x); }); }},
    {"softmax", 2, [](M& m, const I& i) { unary(m, i, [&](auto x) { return x.softmax(dim_of(x, i)); }); }},
    {"layer_norm", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return at::layer_norm(at_least_1d(x), {at_least_1d(x).size(-1)}); }); }},
    {"clone", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.clone(); }); }},

    // dtypes
    {"to_double", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.to(at::kDouble); }); }},
    {"to_bfloat16", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.to(at::kBFloat16); }); }},
    {"to_float", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.to(at::kFloat); }); }},
    {"to_long", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.clamp(-9, 9).nan_to_num().to(at::kLong); }); }},
    {"greater", 1, [](M& m, const I& i) { binary(m, i, [](auto x, auto y) { return x > y; }); }},

    // reductions
    {"sum", 2, [](M& m, const I& i) { unary(m, i, [&](auto x) { return x.sum(dim_of(x, i), /*keepdim=*/i.b % 2 == 0); }); }},
    {"mean", 2, [](M& m, const I& i) { unary(m, i, [](auto x) { return x.mean(); }); }},
    {"max", 1, [](M& m, const I& i) { unary(m, i, [&](auto x) { return std::get<0>(x.max(dim_of(x, i))); }); }},
    {"argmax", 1, [](M& m, const I& i) { unary(m, i, [&](auto x) { return x.argmax(dim_of(x, i)); }); }},
    {"logsumexp", 1, [](M& m, const I& i) { unary(m, i, [&](auto x) { return x.logsumexp(dim_of(x, i)); }); }},
    {"norm", 1, [](M& m, const I& i) { unary(m, i, [](auto x) { return at::linalg_vector_norm(x + 1); }); }},
    {"cumsum", 1, [](M& m, const I& i) { unary(m, i, [&](auto x) { return x.cumsum(dim_of(x, i)); }); }},
    {"sort", 1, [](M& m, const I& i) { unary(m, i, [&](auto x) { return std::get<0>(x.sort(dim_of(x, i))); }); }},

    // in-place writes
    {"add_", 4, [](M& m, const I& i) { in_place(m, i, [](auto t, auto y) { t.add_(y); }); }},
    {"mul_", 3, [](M& m, const I& i) { in_place(m, i, [](auto t, auto y) { t.mul_(at::sigmoid(y)); }); }},
    {"lerp_", 1, [](M& m, const I& i) { in_place(m, i, [](auto t, auto y) { t.lerp_(y.expand_as(t), 0.25); }); }},
    {"copy_", 3, [](M& m, const I& i) { in_place(m, i, [](auto t, auto y) { t.copy_(y); }); }},
    {"fill_", 1, [](M& m, const I& i) { in_place(m, i, [&](auto t, auto) { t.fill_(i.n / 64.0); }); }},
    {"tanh_", 2, [](M& m, const I& i) { in_place(m, i, [](auto t, auto) { t.tanh_(); }, true); }},
    {"masked_fill_", 1, [](M& m, const I& i) { in_place(m, i, [](auto t, auto y) { t.masked_fill_(y > 0.5, 0.25); }); }},

    // random draws
    {"dropout", 3, [](M& m, const I& i) { unary(m, i, [](auto x) { return at::dropout(x, 0.3, /*train=*/true); }); }},
    {"bernoulli_", 2, [](M& m, const I& i) { in_place(m, i, [](auto t, auto) { t.bernoulli_(0.5); }); }},
    {"normal_", 2, [](M& m, const I& i) { in_place(m, i, [](auto t, auto) { t.normal_(0, 0.5); }); }},
    {"randn_like", 2, [](M& m, const I& i) { unary(m, i, [](auto x) { return at::randn_like(x); }); }},
    {"randperm", 1, [](M& m, const I&) { m.push(at::randperm(4), {}); }},
    {"randint", 1, [](M& m, const I&) { m.push(at::randint(0, 5, {4}), {}); }},
    {"generator", 2, [](M& m, const I&) { m.push(at::randn({4}, m.generator()), {}); }},
    {"manual_seed", 1, [](M&, const I& i) { torch::manual_seed(i.n); }},
    {"fork_random", 1, [](M& m, const I&) {
       at::Generator generator = at::detail::getDefaultCPUGenerator();
       const at::Tensor state = generator.get_state();
       m.push(at::rand({4}), {});
       generator.set_state(state);
     }},

    // host reads
    {"item_as_scalar", 3, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       unary(m, {.a = i.b}, [&](auto x) { return x * M::number(a).detach().mean().item(); });
     }},
    {"item_as_branch", 1, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       const bool positive = (M::number(a).detach().sum() > -0.25).item<bool>();
       unary(m, {.a = i.b}, [&](auto x) { return positive ? x.tanh() : x.sub(0.5).relu(); });
     }},
    {"item_as_index", 1, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       const auto index = at_least_1d(M::number(a)).detach().flatten().narrow(0, 0, 1).gt(0).sum().item<int64_t>();
       view(m, {.a = i.b}, [&](auto t) { return t.reshape({-1}).select(0, std::min(index, t.numel() - 1)); });
     }},

    // autograd
    {"backward", 4, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       if (has_graph(a.tensor)) scalar_loss(a.tensor).backward({}, /*retain_graph=*/true);
     }},
    {"grad", 3, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       if (!has_graph(a.tensor)) return;
       const auto found = torch::autograd::grad({scalar_loss(a.tensor)}, {m.given(kWeight).tensor}, {}, /*retain_graph=*/true,
                                                /*create_graph=*/i.n % 2 == 0, /*allow_unused=*/true);
       if (found[0].defined()) m.push(found[0], {a});
     }},
    {"hook", 2, [](M& m, const I& i) {
       const Value a = m.pick(i.a);
       if (a.tensor.requires_grad() && !a.tensor.is_leaf())
         a.tensor.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
     }},
    {"new_leaf", 1, [](M& m, const I& i) { m.push(M::number(m.pick(i.a)).detach().clone().requires_grad_(), {}); }},
});

}  // namespace

std::span<const Operation> operations() { return kOperations; }

std::ostream& operator<<(std::ostream& out, const RandomProgram& program) {
  out << "update " << static_cast<int>(program.update) << ", clearing " << static_cast<int>(program.clearing)
      << ", outputs " << static_cast<int>(program.outputs);
  for (const Instruction& i : program.code)
    out << "\n  " << kOperations[i.op].name << " a=" << int{i.a} << " b=" << int{i.b} << " n=" << int{i.n}
        << (i.no_grad ? " no_grad" : "");
  return out;
}

RandomModelImpl::RandomModelImpl() {
  torch::manual_seed(5);
  weight = register_parameter("weight", torch::randn({4, 4}) * 0.5);
  bias = register_parameter("bias", torch::randn({4}));
  table = register_parameter("table", torch::randn({5, 4}));
  mean = register_buffer("mean", torch::zeros({4}));
  total = register_buffer("total", torch::ones({4, 4}));
}

Machine::Machine(const RandomModel& model, at::Generator generator, const at::Tensor& x, const at::Tensor& ids)
    : generator_(std::move(generator)) {
  for (const at::Tensor& tensor : {model->weight, model->bias, model->table, model->mean, model->total, x, ids}) {
    given_.push_back({tensor});
    given_.back().memory->given = true;
  }
  values_ = given_;
  push(at::embedding(model->table, ids), {given_[kTable]});
  push(at::linear(x, model->weight, model->bias), {given_[kBatch], given_[kWeight], given_[kBias]});
}

void Machine::run(const Instruction& instruction) {
  const at::AutoGradMode mode(at::GradMode::is_enabled() && !instruction.no_grad);
  kOperations[instruction.op].run(*this, instruction);
}

at::Tensor Machine::number(const Value& value) {
  return value.tensor.is_floating_point() ? value.tensor : value.tensor.to(at::kFloat);
}

at::Tensor Machine::fit(const Value& b, const at::Tensor& a) {
  at::Tensor tensor = number(b);
  if (!fits(tensor, a)) tensor = tensor.mean();
  return tensor.to(a.scalar_type());
}

void Machine::push(const at::Tensor& result, std::initializer_list<Value> operands) {
  Value value;
  value.tensor = result.numel() <= kMaxElements ? result : result.flatten().narrow(0, 0, 16).clone();
  for (const Value& operand : operands) {
    if (shares_storage(value.tensor, operand.tensor)) {
      value.memory = operand.memory;
      value.writable = false;
    }
    if (result.requires_grad()) operand.memory->saved = true;
  }
  if (result.requires_grad()) value.memory->saved = true;
  values_.push_back(std::move(value));
}

void Machine::push_view(const at::Tensor& view, const Value& of, bool writable) {
  Value value{view, of.memory, writable && of.writable};
  if (!shares_storage(view, of.tensor)) value.memory = std::make_shared<Memory>();
  // PyTorch refuses writes to a memory with views of chunk() or views that were made in a no_grad region.
  if (!writable || (!at::GradMode::is_enabled() && of.tensor.requires_grad())) value.memory->saved = true;
  values_.push_back(std::move(value));
}

Value Machine::target(const Value& value) {
  const bool refused = !value.writable || value.memory->saved || !value.tensor.is_floating_point() ||
                       (value.memory->given && at::GradMode::is_enabled());
  if (!refused) return value;
  Value copy{number(value).clone()};
  values_.push_back(copy);
  return copy;
}

void Machine::forget(uint8_t index) {
  if (values_.size() > 4) values_.erase(values_.begin() + static_cast<ssize_t>(index % values_.size()));
}

}  // namespace stepc::test
