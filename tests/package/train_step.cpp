// The C++ door of an installed stepc: the same training twice, eager and accelerated, must end in the same weights.
#include <cstdio>
#include <vector>

#include <stepc/engine/stepc.h>

#include <torch/torch.h>

namespace {

std::vector<at::Tensor> train(stepc::Mode mode) {
  torch::manual_seed(1);
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto step = stepc::accelerate(
      [&](const at::Tensor& batch) {
        at::Tensor loss = (model(batch) - batch.sum(1, true)).square().mean();
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        return loss.detach();
      },
      {model}, {optimizer}, {.mode = mode});
  for (int i = 0; i < 8; ++i) step(torch::randn({4, 8}));
  if (mode != stepc::Mode::kEager && step.stats().replays == 0) {
    std::puts("the step was never replayed");
    std::puts(step.report().c_str());
    return {};
  }
  return model->parameters();
}

}  // namespace

int main() {
  const std::vector<at::Tensor> eager = train(stepc::Mode::kEager);
  const std::vector<at::Tensor> exact = train(stepc::Mode::kExact);
  for (size_t i = 0; i < eager.size(); ++i) {
    if (i >= exact.size() || !torch::equal(eager[i], exact[i])) {
      std::puts("the accelerated step differs from the eager one");
      return 1;
    }
  }
  std::puts("equal to eager");
  return 0;
}
