"""Tensors without dimensions: ATen lets them have a dimension 0, and indices without one count as a single element."""

import pytest
import torch

import stepc

ONE, NOTHING = torch.tensor(1), torch.tensor(0)
OF_A_NUMBER = {
    "sort": lambda y: y.sort()[0], "msort": lambda y: y.msort(), "topk": lambda y: y.topk(1)[0],
    "argsort": lambda y: y * y.argsort(), "kthvalue": lambda y: y.kthvalue(1)[0], "median": lambda y: y.median(0)[0],
    "softmax": lambda y: y.softmax(0) * y, "log_softmax": lambda y: y.log_softmax(-1) + y,
    "max": lambda y: y.max(0)[0], "amax": lambda y: y.amax(0), "argmax": lambda y: y * (1 + y.argmax(0)),
    "sum": lambda y: y.sum(0), "mean": lambda y: y.mean(-1), "prod": lambda y: y.prod(0), "any": lambda y: y * (y > 0).any(0),
    "norm": lambda y: y.norm(dim=0), "logsumexp": lambda y: y.logsumexp(0), "cumsum": lambda y: y.cumsum(0),
    "cumprod": lambda y: y.cumprod(0), "cummax": lambda y: y.cummax(0)[0], "logcumsumexp": lambda y: y.logcumsumexp(0),
    "gather": lambda y: y.gather(0, NOTHING), "scatter": lambda y: y.scatter(0, NOTHING, 1.0) * y,
    "index_select": lambda y: y.index_select(0, NOTHING), "index_add": lambda y: y.index_add(0, ONE.new_zeros(1), y),
    "flip": lambda y: y.flip(()), "tile": lambda y: y.tile(2).sum(),
}
BY_A_NUMBER = {
    "index_select": lambda y: y.index_select(0, ONE), "gather": lambda y: y.gather(0, ONE),
    "scatter": lambda y: y.scatter(0, ONE, 2.0), "scatter_add": lambda y: y.scatter_add(0, ONE, y.sum()),
    "index_fill": lambda y: y.index_fill(0, ONE, 0.5), "index_copy": lambda y: y.index_copy(0, ONE, y.sum()),
    "index_put": lambda y: y.index_put((ONE,), y.sum()), "take": lambda y: y.take(ONE), "index": lambda y: y[ONE],
    "embedding": lambda y: torch.nn.functional.embedding(ONE, y.reshape(3, 1)),
}
OPS = [pytest.param(3 if by else 1, op, id=("by-" if by else "of-") + name)
       for by, ops in enumerate((OF_A_NUMBER, BY_A_NUMBER)) for name, op in ops.items()]


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("outputs, op", OPS)
def test_op_is_as_eager(outputs, op, mode, caplog):
    losses, weights = [], []
    for accelerated in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, outputs, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            y = model(x)
            loss = (op(y.reshape(() if outputs == 1 else (outputs,))).sum() - 1).square() + y.square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = stepc.accelerate(step, config=stepc.Config(mode=mode)) if accelerated else step
        losses.append(torch.stack([run(torch.randn(1, 4)).detach() for _ in range(5)]))
        weights.append(model.weight.detach())
    assert run.stats["replays"] >= 1 and not run.stats["warnings"], run.stats["warnings"]
    assert "fault of stepc" not in caplog.text
    if mode == "exact":
        assert torch.equal(*losses) and torch.equal(*weights)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*weights)
