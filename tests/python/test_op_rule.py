"""stepc.op_rule: an operator of the program's own is part of the plan, and what is said of it is held to what it does."""

import re

import pytest
import torch
from torch import nn

import stepc
from harness import WARM_UP, source_of, train

@torch.library.custom_op("rules::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of x by rows of weight, each scaled by its own length."""
    return (x @ weight.T) * (1 + x.norm(dim=-1, keepdim=True))


@product.register_fake
def _(x, weight):
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("rules::product_backward", mutates_args=())
def product_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return grad.T @ (x * (1 + x.norm(dim=-1, keepdim=True)))


@product_backward.register_fake
def _(grad, x, weight):
    return torch.empty_like(weight)


product.register_autograd(
    lambda ctx, grad: (None, torch.ops.rules.product_backward(grad, *ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
torch.library.define("rules::largest", "(Tensor x, *, float by=1.0) -> (Tensor, Tensor)")
torch.library.impl("rules::largest", "cpu", lambda x, *, by=1.0: (x.amax(-1) * by, x.sum(0)))
counted = []
torch.library.define("rules::counted", "(Tensor x) -> Tensor")
torch.library.impl("rules::counted", "cpu", lambda x: (counted.append(1), x + 1)[1])
torch.library.define("rules::biased", "(Tensor x, Tensor? bias=None) -> Tensor")
torch.library.impl("rules::biased", "cpu", lambda x, bias=None: x * 2 if bias is None else x * 2 + bias)
torch.library.define("rules::sly", "(Tensor x) -> Tensor")
torch.library.impl("rules::sly", "cpu", lambda x: x.add_(1).clone())
torch.library.define("rules::changed", "(Tensor(a!) x) -> Tensor")
torch.library.define("rules::number", "(Tensor x) -> int")
torch.library.define("rules::composed", "(Tensor x) -> Tensor")
torch.library.impl("rules::composed", "CompositeImplicitAutograd", lambda x: x + 1)

FLOPS = lambda x, weight: 2 * x.numel() * weight.shape[0]
OF_PRODUCT = dict(
    shapes=lambda x, weight: (x.shape[0], weight.shape[0]), flops=FLOPS, bytes=12345, sharding="m _, n _ -> m n"
)
OF_BACKWARD = dict(flops=lambda grad, x, weight: 2 * x.numel() * grad.shape[1], sharding="m n, m _, n _ -> n _; m: sum")
OF_LARGEST = dict(shapes=lambda x, by: [(x.shape[0],), (x.shape[1],)], sharding="r c -> r, c; c: max, r: sum")


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        with torch.no_grad():
            largest, sums = torch.ops.rules.largest(x, by=2.0)
        hidden = torch.ops.rules.product((self.body(x) + largest[:, None]).detach(), self.weight)
        return hidden.square().mean() + self.body(x + sums).square().mean()


def training():
    torch.manual_seed(0)
    return train(Head(), lambda model, x: model(x))


def batch(i):
    return torch.randn(8, 6, generator=source_of(i))


@pytest.fixture
def rules(monkeypatch):
    """Gives the rules of the three operators, as they should be but for what a test changes; they go with the test."""
    monkeypatch.setattr("stepc.op_rules._RULES", {})

    def give(product=None, backward=None, largest=None):
        stepc.op_rule("rules::product", **{**OF_PRODUCT, **(product or {})})
        stepc.op_rule("rules::product_backward", **{**OF_BACKWARD, **(backward or {})})
        stepc.op_rule("rules::largest", **{**OF_LARGEST, **(largest or {})})

    return give


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_the_plan_makes_the_calls(rules, mode):
    rules()
    eager, accelerated = training(), training()
    step = stepc.accelerate(accelerated.step, config=stepc.Config(mode=mode))
    for i in range(WARM_UP + 10):
        wanted, seen = eager.step(batch(i)), step(batch(i))
        assert mode != "exact" or torch.equal(wanted, seen)
        torch.testing.assert_close(wanted, seen)
    assert step.stats["replays"] >= 6 and step.stats["traced"] == "" and step.stats["warnings"] == []
    assert "rules::product" not in step.stats["opaque_calls"]
    text = step.schedule_text()
    assert re.search(r"aten rules::product .* rule flops 384\.0 bytes 12345\.0 dims \"m _, n _ -> m n\"", text)
    assert re.search(r"rules::product .* work\(384\.0, 0\.0, 12345\.0\)", text)
    assert re.search(r"rules::largest .* dims \"r c -> r, c; c: max, r: sum\"", text)
    assert "rule flops 384.0" in step.graph_text()


def test_without_a_rule_the_steps_own_python_makes_them(rules):
    step = stepc.accelerate(lambda x: (torch.ops.rules.counted(x) * 2).sum())
    for i in range(WARM_UP + 6):
        step(batch(i))
    assert len(counted) == WARM_UP + 6, "nothing but the step itself calls an unknown operator"
    assert "nothing is known of it (stepc.op_rule says what it does)" in step.stats["traced"]


def test_flops_and_bytes_are_in_the_profile(rules, tmp_path):
    rules()
    step = stepc.accelerate(training().step)
    for i in range(WARM_UP + 2):
        step(batch(i))
    with step.profile() as profile:
        step(batch(0))
    text = str(profile)
    assert "own operator" in text, "a class of its own"
    row = next(line for line in text.splitlines() if "rules::product (own)" in line)
    assert float(row.split()[-1]) > 0 and float(row.split()[-2]) > 0, row


def test_a_virtual_capture_holds_them(rules):
    rules(largest={"sharding": None})
    program = training()
    plan = stepc.plan(program.step, batch(0))
    assert plan.obstacle == ""
    assert "rule flops 384.0 bytes 12345.0" in plan.graph_text()


def run(config=None):
    step = stepc.accelerate(training().step, config=config)
    for i in range(WARM_UP + 4):
        step(batch(i))
    return step


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            dict(product={"shapes": lambda x, weight: (x.shape[0], 5)}),
            r"op_rule rules::product: of f32\[8, 6\], f32\[4, 6\] its shapes are \[8, 5\], and the operator made \[8, 4\]",
        ),
        (
            dict(largest={"shapes": lambda x, by: (x.shape[0],)}),
            r"op_rule rules::largest: of f32\[8, 6\] its shapes are \[8\], and the operator made \[8\], \[6\]",
        ),
        (dict(product={"flops": lambda x, weight: -1}), r"op_rule rules::product: flops is -1; it is a number, 0 or more"),
        (dict(product={"flops": lambda x, weight: "1"}), r"op_rule rules::product: flops is '1'; it is a number"),
        (
            dict(product={"bytes": lambda x, weight: x.nothing}),
            r"op_rule rules::product: bytes ends with AttributeError: 'Tensor' object has no attribute 'nothing'",
        ),
        (dict(product={"shapes": lambda x, weight: 3.5}), r"op_rule rules::product: shapes gives 3.5; it is a shape"),
        (dict(product={"shapes": lambda x, weight: (2**70, 1)}), r"op_rule rules::product: shapes gives \(1180591620717411303424, 1\)"),
        (dict(product={"shapes": lambda x, weight: (8, -4)}), r"op_rule rules::product: shapes gives \(8, -4\); it is a shape"),
        (dict(product={"flops": lambda x, weight: 10**400}), r"op_rule rules::product: flops is 10+\.\.\.; it is a number"),
        (
            dict(product={"sharding": "m _, n -> m n"}),
            r"op_rule rules::product: sharding \"m _, n -> m n\": it names 1 dimensions of operand 1, which is a f32\[4, 6\]",
        ),
        (
            dict(product={"sharding": "m k, m k -> m _; k: sum"}),
            r"op_rule rules::product: sharding .*: 'm' is 8 and, in operand 1, 4",
        ),
    ],
)
def test_what_a_call_is_not_is_said_when_it_is_recorded(rules, wrong, message):
    rules(**wrong)
    with pytest.raises(stepc.UserError, match=message) as error:
        run()
    assert "\n" not in str(error.value)


WRONG_SHARDINGS = [
    (
        dict(product={"sharding": "m k, n k -> m n; k: sum"}),
        r"op_rule rules::product: sharding \"m k, n k -> m n; k: sum\" says that 'k' \(dimension 1 of operand 0\) may be "
        r"split, but two halves of result 0, summed, are .* away from it, of .*; mend it, or write '_' for 'k'",
    ),
    (
        dict(backward={"sharding": "m n, m _, n _ -> n _; m: max"}),
        r"op_rule rules::product_backward: .* 'm' \(dimension 0 of operand 0\) .* result 0, at their maximum, are",
    ),
    (
        dict(largest={"sharding": "r c -> r, c; c: max, r: min"}),
        r"op_rule rules::largest: .* 'r' \(dimension 0 of operand 0\) .* two halves of result 1, at their minimum",
    ),
    (
        dict(product={"sharding": "m k, n _ -> m n; k: sum"}),
        r"op_rule rules::product: .* 'k' .* may be split, but the operator does not run on one half: ",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_SHARDINGS)
def test_a_wrong_sharding_is_found_by_the_first_verification(rules, wrong, message):
    rules(**wrong)
    with pytest.raises(stepc.UserError, match=message) as error:
        run()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chosen", [dict(mode="exact"), dict(python="trace"), dict(capture="virtual")], ids=str)
def test_in_every_way_to_verify(rules, chosen):
    wrong, message = WRONG_SHARDINGS[0]
    rules(**wrong)
    with pytest.raises(stepc.UserError, match=message):
        run(stepc.Config(**chosen))
    assert run(stepc.Config(verify="off", **chosen)).stats["replays"] > 0, "nobody asked for it"


@pytest.mark.parametrize("chosen", [dict(python="trace"), dict(capture="virtual")], ids=str)
def test_right_ones_in_every_way_to_verify(rules, chosen):
    rules()
    assert run(stepc.Config(**chosen)).stats["replays"] > 0


def test_an_error_leaves_the_step_as_it_is_in_eager(rules):
    rules(**WRONG_SHARDINGS[0][0])
    eager, accelerated = training(), training()
    step = stepc.accelerate(accelerated.step)
    for i in range(WARM_UP + 2):
        eager.step(batch(i))
        try:
            step(batch(i))
        except stepc.UserError:
            pass
    for wanted, seen in zip(eager.modules[0].parameters(), accelerated.modules[0].parameters()):
        torch.testing.assert_close(wanted, seen)


def test_in_a_loop(rules):
    def loop():
        torch.manual_seed(0)
        model = Head()
        model, optimizer = stepc.accelerate(model, torch.optim.SGD(model.parameters(), lr=1e-2))
        for i in range(WARM_UP + 4):
            model(batch(i)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return stepc.stats(model)

    rules()
    assert loop()["replays"] > 0
    for wrong, message in WRONG_SHARDINGS[:2]:  # in the forward pass, and in the backward pass
        rules(**wrong)
        with pytest.raises(stepc.UserError, match=message):
            loop()


@pytest.mark.parametrize(
    ("op", "said", "message"),
    [
        ("rules::nothing", {}, "op_rule rules::nothing: there is no such operator; define it first"),
        ("product", {}, "op is 'product'; it is a name such as"),
        ("rules::product\n", {}, "it is a name such as"),
        ("rules::product.", {}, "it is a name such as"),
        ("rules::product.other", {}, "op_rule rules::product.other: there is no such operator"),
        ("aten::mm", {}, "op_rule aten::mm: stepc knows that operator"),
        (product, {}, 'it is a name such as "my::op"'),
        ("rules::changed", {}, r"op_rule rules::changed: it changes or gives back what it is given .*Tensor\(a!\) x"),
        ("rules::number", {}, "op_rule rules::number: it returns something else than tensors"),
        ("rules::composed", {}, "op_rule rules::composed: it is made of other operators"),
        ("rules::product", {"flops": -1}, "op_rule rules::product: flops is -1; it is a number, 0 or more"),
        ("rules::product", {"bytes": "8"}, "op_rule rules::product: bytes is '8'; it is a number, 0 or more"),
        ("rules::product", {"bytes": float("nan")}, "bytes is nan; it is a number, 0 or more"),
        ("rules::product", {"bytes": float("inf")}, "bytes is inf; it is a number, 0 or more"),
        ("rules::product", {"flops": 10**400}, r"op_rule rules::product: flops is 10+\.\.\.; it is a number, 0 or more"),
        ("rules::product", {"shapes": (3, 4)}, r"op_rule rules::product: shapes is \(3, 4\); it is a function"),
        ("rules::product", {"sharding": 3}, "op_rule rules::product: sharding is 3; it is a text"),
        ("rules::product", {"sharding": "m n"}, "op_rule rules::product: sharding: 'm n' has no '->'"),
        ("rules::product", {"sharding": "m k, n k -> m n"}, "sharding: 'k' is missing on a result: say how its parts"),
        ("rules::product", {"sharding": "m _ -> m"}, "sharding names the dimensions of 1 tensor arguments, the operator has 2"),
        ("rules::product", {"sharding": "m _, n _ -> m, n; m: sum, n: sum"}, "sharding names the dimensions of 2 results"),
    ],
)
def test_what_is_no_rule_is_refused(rules, op, said, message):
    with pytest.raises(stepc.UserError, match=message) as error:
        stepc.op_rule(op, **said)
    assert "\n" not in str(error.value)


def test_an_optional_tensor_may_be_left_out(rules):
    stepc.op_rule("rules::biased", sharding="r c, c -> r c")
    bias = torch.randn(6)
    step = stepc.accelerate(lambda x: (torch.ops.rules.biased(x) + torch.ops.rules.biased(x, bias)).sum())
    for i in range(WARM_UP + 2):
        torch.testing.assert_close(step(batch(i)), (4 * batch(i) + bias).sum())
    assert step.stats["replays"] > 0
    assert 'dims "r c -> r c"' in (text := step.graph_text()) and 'dims "r c, c -> r c"' in text


@pytest.mark.parametrize("sharding", [None, "r c -> r c"])
def test_an_operator_that_changes_what_it_is_given_without_a_word(rules, sharding):
    stepc.op_rule("rules::sly", sharding=sharding)
    step = stepc.accelerate(lambda x: torch.ops.rules.sly(x.clone()).sum())
    with pytest.raises(stepc.UserError, match="op_rule rules::sly: it changes its operand 0, and a rule is for an operator"):
        for i in range(WARM_UP + 2):
            step(batch(i))


def test_the_last_rule_of_an_operator_counts(rules):
    rules(product={"flops": 1})
    stepc.op_rule("rules::product.default", flops=2)
    assert 'rules::product(%' in (text := run().graph_text()) and "rule flops 2.0 |" in text


def test_an_operator_that_gives_back_its_argument(rules):
    torch.library.define("rules::same", "(Tensor x) -> Tensor")
    torch.library.impl("rules::same", "cpu", lambda x: x)
    stepc.op_rule("rules::same")
    step = stepc.accelerate(lambda x: torch.ops.rules.same(x * 2) + 1)
    with pytest.raises(stepc.UserError, match="op_rule rules::same: it gave back memory of an argument"):
        step(batch(0))
