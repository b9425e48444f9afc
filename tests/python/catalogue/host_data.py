"""Programs with kernels that read values or sizes on the host, without a host read that Python would see."""

import numpy
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy, ctc_loss, log_softmax
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from catalogue.case import case
from catalogue.parts import CHANGE, STEPS, batches, descend, fit, mlp, sgd


def sequences(lengths_of):
    """(step, padded sequences, lengths, classes); the lengths of all steps have the same sum."""
    for i in range(STEPS):
        source = torch.Generator().manual_seed(i)
        yield i, torch.randn(3, 5, 8, generator=source), lengths_of(i), torch.randint(4, (3,), generator=source)


def two_sets_of_lengths(i):
    return torch.tensor([5, 3, 2] if i < CHANGE else [4, 4, 2])


def recurrent(kind, accelerate, lengths_of=two_sets_of_lengths):
    body, head = kind(8, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = sgd(body, head)

    @accelerate
    def step(x, lengths, y):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden = body(packed)[1]
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return descend(cross_entropy(head(hidden[-1]), y), optimizer)

    for _, x, lengths, y in sequences(lengths_of):
        yield step(x, lengths, y), body, head, optimizer


@case
def packed_lstm(accelerate):
    yield from recurrent(nn.LSTM, accelerate)


@case
def packed_gru(accelerate):
    yield from recurrent(nn.GRU, accelerate)


@case
def packed_rnn(accelerate):
    yield from recurrent(nn.RNN, accelerate)


@case
def packed_lstm_with_lengths_in_turn(accelerate):
    yield from recurrent(nn.LSTM, accelerate, lambda i: torch.tensor([5, 3, 2] if i // 2 % 2 else [4, 4, 2]))


@case(eager="length|batch_sizes|pack")
def packed_lstm_with_lengths_of_their_own(accelerate):
    lengths = [[5, a, 10 - 5 - a] for a in (1, 2, 3, 4)] + [[4, a, 6 - a] for a in (2, 3, 4)] + [[3, 3, 4], [3, 4, 3]]
    yield from recurrent(nn.LSTM, accelerate, lambda i: torch.tensor(lengths[i % len(lengths)]))


@case
def lengths_as_a_list(accelerate):
    body, head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = sgd(body, head)

    @accelerate
    def step(x, lengths, y):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(body(packed)[0], batch_first=True, total_length=5)
        return descend(cross_entropy(head(out.sum(1)), y), optimizer)

    for _, x, lengths, y in sequences(two_sets_of_lengths):
        yield step(x, lengths.tolist(), y), body, head, optimizer


@case
def list_of_sequences(accelerate):
    body, head = nn.LSTM(8, 8), nn.Linear(8, 4)
    optimizer = sgd(body, head)

    @accelerate
    def step(rows, y):
        hidden, _ = body(pack_sequence(rows, enforce_sorted=False))[1]
        return descend(cross_entropy(head(hidden[-1]), y), optimizer)

    for _, x, lengths, y in sequences(two_sets_of_lengths):
        yield step([row[:length] for row, length in zip(x, lengths.tolist())], y), body, head, optimizer


@case
def ctc_with_length_tensors(accelerate):
    model = nn.Linear(8, 6)
    optimizer = sgd(model)

    @accelerate
    def step(x, targets, input_lengths, target_lengths):
        scores = log_softmax(model(x), -1).transpose(0, 1)
        return descend(ctc_loss(scores, targets, input_lengths, target_lengths), optimizer)

    for i, x, lengths, _ in sequences(lambda i: torch.tensor([5, 4, 3] if i < CHANGE else [4, 3, 5])):
        targets = torch.randint(1, 6, (3, 2), generator=torch.Generator().manual_seed(i))
        yield step(x, targets, lengths, torch.tensor([2, 1, 1] if i < 7 else [1, 2, 1])), model, optimizer


@case
def ctc_with_joined_targets(accelerate):
    model, criterion = nn.Linear(8, 6), nn.CTCLoss(zero_infinity=True)
    optimizer = sgd(model)

    @accelerate
    def step(x, targets, target_lengths):
        scores = log_softmax(model(x), -1).transpose(0, 1)
        return descend(criterion(scores, targets, torch.full((3,), 5), target_lengths), optimizer)

    for i, x, lengths, _ in sequences(lambda i: torch.tensor([2, 1, 1] if i < CHANGE else [1, 1, 2])):
        yield step(x, torch.tensor([1, 2, 3, 4]), lengths), model, optimizer


@case
def tensor_split_at_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model, lr=0.01)

    @accelerate
    def step(x, y, places):
        first, second = torch.tensor_split(model(x), places)
        loss = cross_entropy(model(x), y) + first.square().sum() - 0.1 * second.square().sum()
        return descend(loss, optimizer)

    for i, x, y in batches():
        yield step(x, y, torch.tensor([3 if i < CHANGE else 5])), model, optimizer


@case
def repeat_interleave_by_counts(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, counts):
        rows = torch.repeat_interleave(torch.arange(8), counts)
        return descend(cross_entropy(model(x[rows]), y[rows]), optimizer)

    for i, x, y in batches():
        counts = torch.tensor([1, 2, 0, 1, 1, 1, 1, 1] if i < CHANGE else [0, 1, 1, 1, 2, 1, 1, 1])
        yield step(x, y, counts), model, optimizer


@case
def split_by_sizes_from_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, sizes):
        parts = model(x).split(sizes.tolist())
        loss = sum(part.mean(0).square().sum() for part in parts) + cross_entropy(model(x), y)
        return descend(loss, optimizer)

    for i, x, y in batches():
        yield step(x, y, torch.tensor([3, 5] if i < CHANGE else [6, 2])), model, optimizer


@case
def rows_chosen_by_a_mask(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, mask):
        return descend(cross_entropy(model(x)[mask], y[mask]), optimizer)

    for i, x, y in batches():
        yield step(x, y, torch.arange(8) < (6 if i < CHANGE else 4)), model, optimizer


@case
def places_found_by_nonzero(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, mask):
        (rows,) = torch.nonzero(mask, as_tuple=True)
        return descend(cross_entropy(model(x[rows]), y[rows]) * len(rows), optimizer)

    for i, x, y in batches():
        yield step(x, y, torch.arange(8) % 2 == 0 if i < CHANGE else torch.arange(8) > 2), model, optimizer


@case(eager="depends on data|another size|shape")
def as_many_rows_as_the_data_say(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        mask = x[:, 0] > 0
        return descend(cross_entropy(model(x)[mask], y[mask], reduction="sum"), optimizer)

    yield from fit(step, model, optimizer)


@case
def classes_that_are_there(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        there, where = torch.unique(y, return_inverse=True)
        return descend(cross_entropy(model(x), y) + 0.1 * where.float().mean() * len(there), optimizer)

    for i, x, _ in batches():
        yield step(x, torch.arange(8) % (4 if i < CHANGE else 2)), model, optimizer


@case
def boxes_kept_by_nms(accelerate):
    model = nn.Linear(8, 4)
    optimizer = sgd(model)

    @accelerate
    def step(x, boxes, scores):
        kept = torchvision.ops.nms(boxes, scores, 0.5)
        return descend((model(x)[kept] - boxes[kept]).square().mean(), optimizer)

    corner = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    for i, x, _ in batches():
        shift = 3.0 if i < CHANGE else 0.4  # far apart, then on each other
        boxes = corner + shift * torch.arange(8.0)[:, None]
        yield step(x, boxes, x[:, 0].sigmoid()), model, optimizer


@case
def operator_of_the_programs_own(accelerate):
    """Nothing says that its result's size depends on values."""
    with torch.library._scoped_library("catalogue", "FRAGMENT") as library:
        library.define("large_ones(Tensor x, Tensor y) -> Tensor")
        library.impl("large_ones", lambda x, y: x[y > 0].clone(), "CPU")
        model = mlp()
        optimizer = sgd(model)

        @accelerate
        def step(x, y, mask):
            return descend(cross_entropy(model(x), y) + torch.ops.catalogue.large_ones(x, mask).mean(), optimizer)

        for i, x, y in batches():
            mask = torch.arange(8) - (3 if i < CHANGE else 5)
            yield step(x, y, mask), model, optimizer


@case
def bags_with_offsets(accelerate):
    table, head = nn.EmbeddingBag(10, 8, mode="mean"), nn.Linear(8, 4)
    optimizer = sgd(table, head)

    @accelerate
    def step(tokens, offsets, y):
        return descend(cross_entropy(head(table(tokens, offsets)), y), optimizer)

    for i, _, y in batches():
        tokens = torch.randint(10, (12,), generator=torch.Generator().manual_seed(i))
        yield step(tokens, torch.tensor([0, 4, 9] if i < CHANGE else [0, 1, 6]), y[:3]), table, head, optimizer


@case
def top_k_by_a_number_in_a_tensor(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y, k):
        hardest = cross_entropy(model(x), y, reduction="none").topk(int(k)).values
        return descend(hardest.mean(), optimizer)

    for i, x, y in batches():
        yield step(x, y, torch.tensor(6 if i < CHANGE else 3)), model, optimizer


@case(eager=r"Tensor.data_ptr\(\) .* gives values to the host that no recording sees")
def memory_read_through_an_address(accelerate):
    """Who has the address reads the memory when he likes: no replay can know what has to be there by then."""
    import ctypes

    model = mlp()
    optimizer, firsts = sgd(model), []

    @accelerate
    def step(x, y):
        hidden = (x * 2).contiguous()
        firsts.append(ctypes.c_float.from_address(hidden.data_ptr()).value)
        return descend(cross_entropy(model(hidden), y), optimizer)

    yield from fit(step, model, optimizer, firsts)


@case
def orthogonal_by_an_exponential(accelerate):
    """The kernel of matrix_exp chooses by norms how many terms it sums."""
    part = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    model = nn.Sequential(part, nn.Linear(8, 4))
    optimizer = sgd(model, lr=1.0)

    @accelerate
    def step(x, y):
        with nn.utils.parametrize.cached():
            return descend(cross_entropy(model(x), y) + 0.1 * cross_entropy(model(-x), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def packed_sequences_in_a_batch(accelerate):
    """The layer reads on the host how many sequences go on at each place."""
    layer, head = nn.LSTM(8, 8), nn.Linear(8, 4)
    optimizer, weights = sgd(layer, head), layer._flat_weights

    @accelerate
    def step(rows, sizes, y):
        zeros = torch.zeros(1, 3, 8)
        out, *_ = torch._VF.lstm(rows, sizes, (zeros, zeros), weights, True, 1, 0.0, True, False)
        return descend(cross_entropy(head(out), y), optimizer)

    for i in range(16):
        source = torch.Generator().manual_seed(i)
        sizes = torch.tensor([3, 3, 2, 1, 1] if i < 10 else [3, 2, 2, 2, 1])
        rows, y = torch.randn(10, 8, generator=source), torch.randint(4, (10,), generator=source)
        yield step(rows, sizes, y), layer, head, optimizer


@case
def tensor_made_of_elements(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        weights = torch.tensor([logits[0, 0], 1.0, [*logits.detach()[:, 1]][2], 2.0]).abs()
        return descend(cross_entropy(logits, y, weight=weights), optimizer)

    yield from fit(step, model, optimizer)


@case(eager="read")
def tensor_that_is_printed(accelerate):
    model, seen = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        seen.append(repr(logits[0]))
        return descend(cross_entropy(logits, y), optimizer)

    yield from fit(step, model, optimizer, seen)


class Sine(torch.autograd.Function):
    """Of NumPy's, both ways."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tensor(numpy.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.tensor(numpy.cos(x.numpy())) * gradient


@case(eager="numpy")
def function_of_numpy(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(Sine.apply(model(x)), y), optimizer))
    yield from fit(step, model, optimizer)


@case(eager="is written to")
def memory_written_through_numpy(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        weights = torch.ones(4)
        weights.numpy()[0] = 2.0
        return descend(cross_entropy(model(x), y, weight=weights), optimizer)

    yield from fit(step, model, optimizer)


@case(eager="storage of its own")
def memory_through_a_capsule(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        again = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(logits.detach()))
        return descend(cross_entropy(logits, y) * (1 + float(again.mean())), optimizer)

    yield from fit(step, model, optimizer)


@case
def places_padded_to_a_size(accelerate):
    """How much memory the kernel takes for itself follows from the data."""
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        rows = torch.nonzero_static(x[:, 0] > 0, size=4, fill_value=0)[:, 0]
        return descend(cross_entropy(model(x[rows]), y[rows]), optimizer)

    yield from fit(step, model, optimizer)
