"""Lightning: its Trainer with a LightningModule, and its Fabric with a loop of one's own."""

import logging
import warnings

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness import Training, source_of
from programs.program import check

ROWS, EPOCHS = 64, 4


def rows(seed):
    source = source_of(seed)
    data = TensorDataset(torch.randn(ROWS, 8, generator=source), torch.randint(4, (ROWS,), generator=source))
    return DataLoader(data, batch_size=8, shuffle=seed == 0, generator=source_of(1))


def classifier():
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


class Classifier(lightning.LightningModule):
    def __init__(self, run):
        super().__init__()
        self.net = classifier()
        self.seen = run.saw
        run.started(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.net, self.optimizer = run.accelerate(self.net, self.optimizer)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen(outputs["loss"], {key: value for key, value in self.trainer.callback_metrics.items()})

    def configure_optimizers(self):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=EPOCHS)
        return {"optimizer": self.optimizer, "lr_scheduler": scheduler}


def trainer(run):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
    module = Classifier(run)
    one = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
                            default_root_dir=str(run.folder))
    one.fit(module, rows(0), rows(5))
    return Training(None, [module.net], [module.optimizer])


def fabric(run):
    fabric = Fabric(accelerator="cpu", devices=1)
    model = classifier()
    run.started(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    looked_at = Training(None, [model], [optimizer])
    model, optimizer = run.accelerate(model, optimizer)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(rows(0))
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            run.saw(loss.detach())
    return looked_at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_trainer(mode, tmp_path):
    check(trainer, mode, tmp_path)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_fabric(mode, tmp_path):
    check(fabric, mode, tmp_path)
