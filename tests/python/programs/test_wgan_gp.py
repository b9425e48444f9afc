"""A WGAN with gradient penalty: noise and interpolation from NumPy, a critic trained five times as often."""

import numpy as np
import pytest
import torch
from torch import autograd, nn

from harness import Training, source_of
from programs.program import check

LATENT, ROWS, STEPS, CRITIC_STEPS = 8, 16, 60, 5


class Generator(nn.Module):
    def __init__(self):
        super().__init__()

        def block(inputs, outputs, normalize=True):
            layers = [nn.Linear(inputs, outputs)]
            if normalize:
                layers.append(nn.BatchNorm1d(outputs, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(*block(LATENT, 16, normalize=False), *block(16, 32), nn.Linear(32, 36), nn.Tanh())

    def forward(self, z):
        return self.model(z).view(z.size(0), 1, 6, 6)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(36, 32), nn.LeakyReLU(0.2, inplace=True), nn.Linear(32, 16),
                                   nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))

    def forward(self, images):
        return self.model(images.view(images.shape[0], -1))


def gradient_penalty(critic, real, fake):
    alpha = torch.tensor(np.random.random((real.size(0), 1, 1, 1)), dtype=torch.float32)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(interpolates)
    gradients = autograd.grad(outputs=scores, inputs=interpolates, grad_outputs=torch.ones_like(scores),
                              create_graph=True, retain_graph=True, only_inputs=True)[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def images():
    for i in range(STEPS):
        yield torch.rand(ROWS, 1, 6, 6, generator=source_of(i)) * 2 - 1


def made():
    generator, critic = Generator(), Critic()
    return (generator, critic, torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999)))


def whole_steps(run):
    """Two steps, one over the critic and one over the generator, each with the one line."""
    generator, critic, optimizer_g, optimizer_d = made()
    run.started(generator, critic)

    def train_critic(real):
        optimizer_d.zero_grad()
        z = torch.tensor(np.random.normal(0, 1, (real.shape[0], LATENT)), dtype=torch.float32)
        fake = generator(z)
        penalty = gradient_penalty(critic, real.data, fake.data)
        loss = -torch.mean(critic(real)) + torch.mean(critic(fake)) + 10 * penalty
        loss.backward()
        optimizer_d.step()
        return loss.item(), fake.detach()

    def train_generator(rows):
        optimizer_g.zero_grad()
        z = torch.tensor(np.random.normal(0, 1, (rows, LATENT)), dtype=torch.float32)
        loss = -torch.mean(critic(generator(z)))
        loss.backward()
        optimizer_g.step()
        return loss.item()

    train_critic, train_generator = run.accelerate(train_critic), run.accelerate(train_generator)
    for i, real in enumerate(images()):
        critic_loss, fake = train_critic(real)
        run.saw(critic_loss, fake)
        if i % CRITIC_STEPS == 0:
            run.saw(train_generator(ROWS))
    return Training(None, [generator, critic], [optimizer_g, optimizer_d])


def unchanged_loop(run):
    """The same program with models and optimizers accelerated: a gradient penalty differentiates the graph again."""
    generator, critic, optimizer_g, optimizer_d = made()
    run.started(generator, critic)
    looked_at = Training(None, [generator, critic], [optimizer_g, optimizer_d])
    generator, optimizer_g = run.accelerate(generator, optimizer_g)
    critic, optimizer_d = run.accelerate(critic, optimizer_d)
    for i, real in enumerate(images()):
        optimizer_d.zero_grad()
        z = torch.tensor(np.random.normal(0, 1, (real.shape[0], LATENT)), dtype=torch.float32)
        fake = generator(z)
        penalty = gradient_penalty(critic, real.data, fake.data)
        loss = -torch.mean(critic(real)) + torch.mean(critic(fake)) + 10 * penalty
        loss.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        shown = [loss.item(), fake.detach()]
        if i % CRITIC_STEPS == 0:
            loss = -torch.mean(critic(generator(z)))
            loss.backward()
            optimizer_g.step()
            shown.append(loss.item())
        run.saw(*shown)
    return looked_at


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_wgan_gp(mode, tmp_path):
    check(whole_steps, mode, tmp_path)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_wgan_gp_in_a_loop(mode, tmp_path):
    check(unchanged_loop, mode, tmp_path, eager="create_graph|retain_graph|differentiated again")
