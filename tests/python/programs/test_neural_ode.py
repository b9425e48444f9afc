"""A neural ODE with torchdiffeq: fixed steps, and a solver that chooses its steps by what it finds."""

import numpy as np
import pytest
import torch
import torchdiffeq
from torch import nn

from harness import Training
from programs.program import check

POINTS, WINDOW, ROWS, STEPS = 100, 8, 10, 40


class Spiral(nn.Module):
    def forward(self, t, y):
        return torch.mm(y**3, torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]))


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 2))
        for module in self.net.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0, std=0.1)
                nn.init.constant_(module.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


def ode(run, solve, **options):
    t = torch.linspace(0.0, 5.0, POINTS)
    with torch.no_grad():
        true_y = torchdiffeq.odeint(Spiral(), torch.tensor([[2.0, 0.0]]), t, method="dopri5")
    func = ODEFunc()
    run.started(func)
    optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)

    def get_batch():
        s = torch.from_numpy(np.random.choice(np.arange(POINTS - WINDOW, dtype=np.int64), ROWS, replace=False))
        return true_y[s], t[:WINDOW], torch.stack([true_y[s + i] for i in range(WINDOW)], dim=0)

    def train(batch_y0, batch_t, batch_y):
        optimizer.zero_grad()
        pred_y = solve(func, batch_y0, batch_t, **options)
        loss = torch.mean(torch.abs(pred_y - batch_y))
        loss.backward()
        optimizer.step()
        return loss.detach()

    train = run.accelerate(train)
    for _ in range(STEPS):
        run.saw(train(*get_batch()))
    return Training(None, [func], [optimizer])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("solve", [torchdiffeq.odeint, torchdiffeq.odeint_adjoint], ids=["plain", "adjoint"])
def test_fixed_steps(mode, solve, tmp_path):
    check(lambda run: ode(run, solve, method="rk4"), mode, tmp_path)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("solve", [torchdiffeq.odeint, torchdiffeq.odeint_adjoint], ids=["plain", "adjoint"])
def test_adaptive_steps(mode, solve, tmp_path):
    """The one program that mostly runs eagerly: it takes another number of steps at almost every call, and tries others."""
    check(lambda run: ode(run, solve, method="dopri5"), mode, tmp_path,
          eager="a step left its plan: it (calls|passes) .* recorded")
