"""Programs with tensors and modules of every kind: what a plan cannot hold runs eagerly, with a line that says what."""

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, adam, batches, descend, fit, mlp, sgd


# ---- what a recording may not hold


@case(eager="sparse|dense")
def sparse_gradients(accelerate):
    table, head = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 4)
    optimizers = torch.optim.SparseAdam(table.parameters(), lr=1e-2), sgd(head)
    step = accelerate(lambda tokens, y: descend(cross_entropy(head(table(tokens)), y), *optimizers))
    for _, _, y in batches():
        yield step(y + 2, y), table.weight.detach(), head, optimizers[1]


@case(eager="sparse|dense")
def sparse_batch(accelerate):
    layer = nn.Parameter(torch.randn(8, 4) * 0.3)
    optimizer = torch.optim.SGD([layer], lr=0.1)
    step = accelerate(lambda x, y: descend(cross_entropy(torch.sparse.mm(x, layer), y), optimizer))
    for _, x, y in batches():
        yield step((x * (x > 0)).to_sparse(), y), layer, optimizer


@case(eager="sparse|dense")
def sparse_adjacency(accelerate):
    """A graph network's matrix, made once."""
    model = mlp()
    optimizer, adjacency = sgd(model), torch.eye(8).roll(1, 0).to_sparse_csr()
    step = accelerate(lambda x, y: descend(cross_entropy(adjacency @ model(x), y), optimizer))
    yield from fit(step, model, optimizer)


@case(eager="nested")
def nested_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(rows, y):
        padded = torch.nested.to_padded_tensor(rows, 0.0)
        return descend(cross_entropy(model(padded).mean(1), y), optimizer)

    for _, x, y in batches():
        yield step(torch.nested.nested_tensor([x[:2], x[2:5], x[5:]]), y[:3]), model, optimizer


class Tagged(torch.Tensor):
    """A tensor that knows where it comes from."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Tagged.calls = getattr(Tagged, "calls", 0) + 1
        return super().__torch_function__(function, types, args, kwargs or {})


@case(eager="subclass|Tagged")
def subclass_of_tensor(accelerate):
    model = mlp()
    optimizer, Tagged.calls = sgd(model), 0
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer).as_subclass(torch.Tensor))
    for _, x, y in batches():
        yield step(x.as_subclass(Tagged), y), model, optimizer, Tagged.calls


@case(eager="script")
def scripted_submodule(accelerate):
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.Tanh())), nn.Linear(16, 4))
    optimizer = sgd(model)
    with torch.jit.optimized_execution(False):  # else its kernels change after some calls
        yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer)


@case(eager="script")
def scripted_function(accelerate):
    @torch.jit.script
    def swish(x):
        return x * torch.sigmoid(x)

    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(swish(model(x)), y), optimizer))
    with torch.jit.optimized_execution(False):
        yield from fit(step, model, optimizer)


@case
def compiled_submodule(accelerate):
    torch._dynamo.reset()
    layer = nn.Linear(8, 16)
    model = nn.Sequential(torch.compile(layer, backend="eager"), nn.Tanh(), nn.Linear(16, 4))
    optimizer = sgd(model)
    yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer)


@case(eager="mkldnn|layout|dense")
def tensor_of_another_layout(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model((x.to_mkldnn() * 2).to_dense()), y), optimizer))
    yield from fit(step, model, optimizer)


def inside(accelerate, part):
    """part(hidden) in the middle of a step."""
    model, head = mlp(), nn.Linear(4, 4)
    optimizer = sgd(model, head)
    step = accelerate(lambda x, y: descend(cross_entropy(head(part(model(x))), y), optimizer))
    yield from fit(step, model, head, optimizer)


@case(eager="dense")
def nested_tensor_inside(accelerate):
    def part(hidden):
        return hidden + torch.nested.nested_tensor([hidden[:3].detach(), hidden[3:].detach()]).to_padded_tensor(0.0).mean()

    yield from inside(accelerate, part)


@case(eager="meta")  # where PyTorch makes a stand-in for a jagged tensor's call
def jagged_tensor_inside(accelerate):
    def part(hidden):
        return torch.nested.as_nested_tensor([hidden[:3], hidden[3:]], layout=torch.jagged).mul(2).values()

    yield from inside(accelerate, part)


class Wrapper(torch.Tensor):
    """Has no memory of its own."""

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype)

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*(one.tensor if isinstance(one, Wrapper) else one for one in args), **(kwargs or {}))


@case(eager="dense")
def wrapper_inside(accelerate):
    yield from inside(accelerate, lambda hidden: hidden + Wrapper(hidden.detach()) * 2)


@case(eager="dense")
def compiled_function_inside(accelerate):
    torch._dynamo.reset()
    yield from inside(accelerate, torch.compile(lambda hidden: hidden.sin(), backend="eager"))


@case(eager="script")
def scripted_part_of_a_loops_model(accelerate):
    model = nn.Sequential(torch.jit.script(nn.Linear(8, 16)), nn.Tanh(), nn.Linear(16, 4))
    model, optimizer = accelerate(model, sgd(model))
    with torch.jit.optimized_execution(False):
        for _, x, y in batches():
            yield descend(cross_entropy(model(x), y), optimizer), model, optimizer


@case(eager="quantized|dense|quantize")
def quantized_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.dequantize()), y), optimizer))
    for _, x, y in batches():
        yield step(torch.quantize_per_tensor(x, 0.05, 0, torch.qint8), y), model, optimizer


@case(eager="eagerly")
def forward_mode_derivative(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        _, slope = torch.func.jvp(model, (x,), (torch.ones_like(x),))
        return descend(cross_entropy(model(x), y) + 0.1 * slope.square().mean(), optimizer)

    yield from fit(step, model, optimizer)


# ---- what it holds


@case
def lstm(accelerate):
    body, head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = sgd(body, head)
    step = accelerate(lambda x, y: descend(cross_entropy(head(body(x.view(8, 2, 4).repeat(1, 1, 2))[0][:, -1]), y),
                                           optimizer))
    yield from fit(step, body, head, optimizer)


@case
def lstm_that_is_only_read(accelerate):
    """Grad mode off around a recurrent kernel, whose forward has two forms."""
    body, head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = sgd(head)

    @accelerate
    def step(x, y):
        with torch.no_grad():
            features = body(x[:, None])[0][:, -1]
        return descend(cross_entropy(head(features), y), optimizer)

    yield from fit(step, body, head, optimizer)


@case
def state_carried_between_steps(accelerate):
    """Truncated backpropagation: the hidden state of one step enters the next."""
    cell, head = nn.GRUCell(8, 8), nn.Linear(8, 4)
    optimizer, state = sgd(cell, head), {"hidden": torch.zeros(8, 8)}

    @accelerate
    def step(x, y):
        hidden = cell(x, state["hidden"])
        loss = descend(cross_entropy(head(hidden), y), optimizer)
        state["hidden"] = hidden.detach()
        return loss

    yield from fit(step, cell, head, optimizer, state)


@case
def complex_spectrum(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=8)), y),
                                           optimizer))
    yield from fit(step, model, optimizer)


@case
def complex_parameters(accelerate):
    filters, head = nn.Parameter(torch.randn(5, dtype=torch.complex64)), nn.Linear(8, 4)
    optimizer = torch.optim.Adam([filters, *head.parameters()], lr=1e-2)
    step = accelerate(lambda x, y: descend(cross_entropy(head(torch.fft.irfft(torch.fft.rfft(x) * filters, n=8)), y),
                                           optimizer))
    yield from fit(step, head, optimizer, filters)


@case
def complex_number_as_two_real_ones(accelerate):
    """Rotary positions by complex multiplication."""
    model, angles = mlp(), torch.polar(torch.ones(8, 4), torch.arange(32.0).view(8, 4) / 10)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        turned = torch.view_as_real(torch.view_as_complex(x.view(8, 4, 2)) * angles).flatten(1)
        return descend(cross_entropy(model(turned), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def parts_of_a_complex_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        spectrum = torch.fft.fft(model(x))
        loss = cross_entropy(spectrum.real, y) + 0.1 * spectrum.conj().imag.square().mean()
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer)


@case
def conjugate_of_an_imaginary_number(accelerate):
    """The backward pass takes a window on a number of Python's."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        turned = torch.view_as_real(torch.view_as_complex(model(x).view(8, 2, 2)).conj() * 1j).flatten(1)
        return descend(cross_entropy(turned, y), optimizer)

    yield from fit(step, model, optimizer)


@case
def conjugated_batch(accelerate):
    layer = nn.Linear(8, 4)
    optimizer = sgd(layer)
    step = accelerate(lambda z, y: descend(cross_entropy(layer(torch.view_as_real(z.resolve_conj()).flatten(1)), y),
                                           optimizer))
    for _, x, y in batches():
        z = torch.view_as_complex(x.view(8, 4, 2))
        yield step(z.conj(), y), layer, optimizer


@case
def negated_view_in_the_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x * 2), y), optimizer))
    for _, x, y in batches():
        yield step(torch.complex(x, x).conj().imag, y), model, optimizer


@case
def double_precision(accelerate):
    model = mlp().double()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.double()), y), optimizer))
    yield from fit(step, model, optimizer)


@case(narrow=True)
def bfloat16_model(accelerate):
    model = mlp().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.bfloat16()).float(), y), optimizer))
    yield from fit(step, model, optimizer)


@case(narrow=True)
def autocast(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer)


@case
def bytes_and_booleans(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(pixels, keep, y):
        x = pixels.float().div(255).masked_fill(~keep, 0.0)
        return descend(cross_entropy(model(x), y), optimizer)

    for i, x, y in batches():
        yield step((x * 40 + 128).clamp(0, 255).to(torch.uint8), x > -1, y), model, optimizer


@case
def empty_batch(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y, reduction="sum"), optimizer))
    for i, x, y in batches():
        yield step(x[: 0 if i % 4 == 3 else 8], y[: 0 if i % 4 == 3 else 8]), model, optimizer


@case
def parameters_without_dimensions(accelerate):
    scale, shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.Adam([scale, shift], lr=1e-2)
    step = accelerate(lambda x, y: descend((x[:, 0] * scale + shift - y).square().mean(), optimizer))
    yield from fit(step, optimizer, scale, shift)


@case
def channels_last(accelerate):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(8, 4)).to(memory_format=torch.channels_last)
    optimizer = sgd(model, lr=0.01)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, _, y in batches():
        x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(i))
        yield step(x.contiguous(memory_format=torch.channels_last), y), model, optimizer


@case
def fake_quantization(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        weight = torch.fake_quantize_per_tensor_affine(model[0].weight, 0.02, 0, -128, 127)
        return descend(cross_entropy(model[2](nn.functional.linear(x, weight, model[0].bias).tanh()), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def ensemble_by_vmap(accelerate):
    models = [mlp() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    optimizer, skeleton = torch.optim.SGD(list(parameters.values()), lr=0.1), mlp().to("meta")

    @accelerate
    def step(x, y):
        logits = vmap(lambda p, b: functional_call(skeleton, (p, b), (x,)))(parameters, buffers)
        return descend(cross_entropy(logits.flatten(0, 1), y.repeat(3)), optimizer)

    yield from fit(step, optimizer, parameters)


@case
def gradients_by_func(accelerate):
    model = mlp()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}

    @accelerate
    def step(x, y):
        loss_of = lambda parameters: cross_entropy(functional_call(model, parameters, (x,)), y)
        for name, gradient in grad(loss_of)(parameters).items():
            parameters[name].sub_(0.1 * gradient)
        return loss_of(parameters)

    yield from fit(step, parameters)


@case
def gradients_of_every_row(accelerate):
    """Differential privacy's: clipped row by row."""
    model = nn.Linear(8, 4)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        loss_of = lambda parameters, x, y: cross_entropy(functional_call(model, parameters, (x[None],)), y[None])
        rows = vmap(grad(loss_of), (None, 0, 0))(parameters, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in rows.values()]).norm(dim=0)
        scale = (0.5 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            p.grad = torch.einsum("b,b...->...", scale, rows[name]) / 8
        optimizer.step()
        return norms

    yield from fit(step, model, optimizer)


@case
def gradient_penalty(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        x = x.clone().requires_grad_()
        logits = model(x)
        (slope,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        return descend(cross_entropy(logits, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean(), optimizer)

    yield from fit(step, model, optimizer)


@case
def hessian_vector_product(accelerate):
    model = nn.Linear(8, 4)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        products = torch.autograd.grad(sum(g.square().sum() for g in gradients), list(model.parameters()))
        for p, g, h in zip(model.parameters(), gradients, products):
            p.grad = g.detach() + 0.1 * h
        optimizer.step()
        return loss

    yield from fit(step, model, optimizer)


@case
def checkpointed_part(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(
        lambda x, y: descend(cross_entropy(checkpoint(model, x, use_reentrant=False), y), optimizer))
    yield from fit(step, model, optimizer)


@case
def saved_tensors_packed(accelerate):
    """The program keeps what autograd saves in another type."""
    model = mlp()
    optimizer, packed = sgd(model), {"count": 0}

    def pack(tensor):
        packed["count"] += 1
        return tensor.double()

    @accelerate
    def step(x, y):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.float()):
            loss = nn.functional.mse_loss(model(x), nn.functional.one_hot(y, 4).float())
        return descend(loss, optimizer)

    yield from fit(step, model, optimizer, packed)


@case
def encoder_in_training_and_evaluation(accelerate):
    """TransformerEncoder has a path of its own where no gradient is needed. A bias of keys changes nothing, so that its
    gradient is nothing but rounding, which Adam scales up: it alone is not looked at."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, head = nn.TransformerEncoder(layer, 1), nn.Linear(8, 4)
    optimizer = adam(model, head)

    @accelerate
    def step(x, y):
        tokens = torch.stack([x, x.flip(1), x.roll(1, 1)], 1)
        loss = descend(cross_entropy(head(model(tokens)[:, 0]), y), optimizer)
        model.eval()
        with torch.no_grad():
            features = model(tokens)
        model.train()
        return loss, features

    weights = dict(model.named_parameters())
    queries, _, values = weights.pop("layers.0.self_attn.in_proj_bias").detach().chunk(3)
    yield from fit(step, [*weights.values(), queries, values], head, optimizer)


@case
def strides_of_zero(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x + 1), y), optimizer))
    for i, x, y in batches(STEPS):
        yield step(x[:1].expand(8, 8) if i < CHANGE else x, y), model, optimizer


# ---- containers that answer in ways of their own


class Irreps(tuple):
    """As e3nn's: how long it is, nobody should ask."""

    def __len__(self):
        raise NotImplementedError

    def total(self):
        return sum(tuple.__iter__(self))


@case
def tuple_that_tells_no_length(accelerate):
    model = mlp()
    model.irreps = Irreps((1.0, 0.5))
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y) * model.irreps.total(), optimizer))
    yield from fit(step, model, optimizer)


def counting(kind, *names):
    """A kind of container that counts how often these of its methods are called, by whomever."""

    def counted(method):
        def count(self, *args):
            Counting.asked += 1
            return method(self, *args)

        return count

    Counting = type("Counting", (kind,), {name: counted(getattr(kind, name)) for name in names})
    Counting.asked = 0
    return Counting


def beside(accelerate, model, container):
    """The ordinary step of a model that has a container which nobody asks for anything."""
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for seen in fit(step, model, optimizer):
        yield *seen, type(container).asked


@case
def dict_that_counts_what_is_asked(accelerate):
    model = mlp()
    model.files = counting(dict, "__getitem__", "items", "__len__", "copy")(a=torch.ones(3), b=2.0)
    yield from beside(accelerate, model, model.files)


@case
def list_that_counts_what_is_asked(accelerate):
    model, rows = mlp(), counting(list, "__iter__", "__getitem__", "__len__")([1.0, 2.0])
    model.rows = [rows, {"rows": rows}]
    yield from beside(accelerate, model, rows)


@case
def proxy_of_nothing(accelerate):
    """As a web framework's current request."""

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("nothing is there")

        def __getattr__(self, name):
            raise RuntimeError("nothing is there")

    current, model = Proxy(), mlp()
    model.context = [current]
    optimizer = sgd(model)

    def step(x, y, uses=False):
        return current.loss if uses else descend(cross_entropy(model(x), y), optimizer)

    step = accelerate(step)
    yield from fit(step, model, optimizer)
