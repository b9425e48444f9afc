"""torchvision's reference steps: classification with label smoothing, accuracies and averaged weights."""

import pytest
import torch
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2

from harness import Training, source_of
from programs.program import check

STEPS, CLASSES = 32, 5


def batches():
    for i in range(STEPS):
        source = source_of(i)
        yield torch.rand(6, 3, 32, 32, generator=source), torch.randint(CLASSES, (6,), generator=source)


def accuracy(output, target, topk):
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]


def made(run):
    model = torchvision.models.resnet.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES,
                                             width_per_group=64)
    run.started(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, nesterov=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    main = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - 4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, main], milestones=[4])
    return model, optimizer, scheduler, nn.CrossEntropyLoss(label_smoothing=0.1)


def train_one_epoch(run, model, criterion, optimizer, scheduler, model_ema, step):
    normalize = v2.Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    model.train()
    for image, target in batches():
        loss, acc1, acc5 = step(normalize(image), target)
        model_ema.update_parameters(model)
        scheduler.step()
        run.saw(loss, acc1.item(), acc5.item(), optimizer.param_groups[0]["lr"])


def unchanged_loop(run):
    model, optimizer, scheduler, criterion = made(run)
    looked_at = Training(None, [model], [optimizer])
    model, optimizer = run.accelerate(model, optimizer)
    model_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def step(image, target):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), *accuracy(output, target, topk=(1, 5))

    train_one_epoch(run, model, criterion, optimizer, scheduler, model_ema, step)
    looked_at.modules.append(model_ema)
    return looked_at


def whole_step(run):
    model, optimizer, scheduler, criterion = made(run)
    model_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def step(image, target):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), *accuracy(output, target, topk=(1, 5))

    train_one_epoch(run, model, criterion, optimizer, scheduler, model_ema, run.accelerate(step))
    return Training(None, [model, model_ema], [optimizer])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("program", [unchanged_loop, whole_step])
def test_torchvision(program, mode, tmp_path):
    check(program, mode, tmp_path)
