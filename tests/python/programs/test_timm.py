"""timm: the steps of its training script: mixup, soft targets, its optimizer, clipping, an average of the weights."""

import numpy as np
import pytest
import timm
import timm.data
import timm.loss
import timm.models
import timm.optim
import timm.scheduler
import timm.utils
import torch

from harness import Training, source_of
from programs.program import check

STEPS, CLASSES = 32, 5


def batches():
    for i in range(STEPS):
        source = source_of(i)
        yield (torch.randn(4, 3, 32, 32, generator=source),
               torch.randint(CLASSES, (4,), generator=source))


def made(run):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2,
                              num_classes=CLASSES)
    run.started(model)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
    scheduler = timm.scheduler.CosineLRScheduler(optimizer, t_initial=STEPS, warmup_t=4, warmup_lr_init=1e-4,
                                                 t_in_epochs=False)
    mixup = timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    return model, optimizer, scheduler, mixup, timm.loss.SoftTargetCrossEntropy(), timm.utils.AverageMeter()


def unchanged_loop(run):
    model, optimizer, scheduler, mixup_fn, loss_fn, losses_m = made(run)
    looked_at = Training(None, [model], [optimizer])
    model, optimizer = run.accelerate(model, optimizer)
    model_ema = timm.utils.ModelEmaV3(model, decay=0.9)
    model.train()
    for num_updates, (input, target) in enumerate(batches()):
        input, target = mixup_fn(input, target)
        output = model(input)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(timm.models.model_parameters(model), value=1.0, mode="norm")
        optimizer.step()
        model_ema.update(model, step=num_updates)
        losses_m.update(loss.item(), input.size(0))
        scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
        run.saw(loss.detach(), losses_m.avg)
    looked_at.modules.append(model_ema.module)
    return looked_at


def whole_step(run):
    model, optimizer, scheduler, mixup_fn, loss_fn, losses_m = made(run)
    model_ema = timm.utils.ModelEmaV3(model, decay=0.9)
    model.train()

    def train_one_batch(input, target):
        output = model(input)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(timm.models.model_parameters(model), 1.0)
        optimizer.step()
        losses_m.update(loss.item(), input.size(0))
        return output.detach(), norm

    train_one_batch = run.accelerate(train_one_batch)
    for num_updates, (input, target) in enumerate(batches()):
        run.saw(train_one_batch(*mixup_fn(input, target)), losses_m.avg)
        model_ema.update(model, step=num_updates)
        scheduler.step_update(num_updates=num_updates, metric=losses_m.avg)
    return Training(None, [model, model_ema.module], [optimizer])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("program", [unchanged_loop, whole_step])
def test_timm(program, mode, tmp_path):
    np.random.seed(0)
    check(program, mode, tmp_path)
