"""PPO on a pole on a cart: rollouts, advantages and minibatches of epochs, one update the accelerated step."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions.categorical import Categorical

from harness import Training
from programs.program import check

ENVS, STEPS, EPOCHS, MINIBATCHES, UPDATES = 4, 32, 3, 4, 4
GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-3


def layer_init(layer, std=np.sqrt(2), bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        inputs = np.array(envs.single_observation_space.shape).prod()
        self.critic = nn.Sequential(layer_init(nn.Linear(inputs, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(inputs, 16)), nn.Tanh(),
                                   layer_init(nn.Linear(16, envs.single_action_space.n), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def ppo(run):
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(ENVS)])
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    run.started(agent)
    clipfracs = []

    def update(obs, actions, logprobs, advantages, returns, values):
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions.long())
        logratio = newlogprob - logprobs
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfracs.append(((ratio - 1.0).abs() > CLIP).float().mean().item())
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        pg_loss = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
        newvalue = newvalue.view(-1)
        v_clipped = values + torch.clamp(newvalue - values, -CLIP, CLIP)
        v_loss = 0.5 * torch.max((newvalue - returns) ** 2, (v_clipped - returns) ** 2).mean()
        loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return {"value": v_loss.item(), "policy": pg_loss.item(), "kl": approx_kl.item()}

    update = run.accelerate(update)
    obs = torch.zeros((STEPS, ENVS) + envs.single_observation_space.shape)
    actions = torch.zeros((STEPS, ENVS) + envs.single_action_space.shape)
    logprobs, rewards, dones, values = (torch.zeros((STEPS, ENVS)) for _ in range(4))
    next_obs, _ = envs.reset(seed=1)
    next_obs, next_done = torch.tensor(next_obs), torch.zeros(ENVS)
    for iteration in range(UPDATES):
        optimizer.param_groups[0]["lr"] = (1.0 - iteration / UPDATES) * RATE
        for step in range(STEPS):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            next_obs, reward, terminations, truncations, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs = torch.tensor(next_obs)
            next_done = torch.tensor(np.logical_or(terminations, truncations), dtype=torch.float32)
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages, lastgaelam = torch.zeros_like(rewards), 0
            for t in reversed(range(STEPS)):
                nextnonterminal = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
                nextvalues = next_value if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + GAMMA * LAMBDA * nextnonterminal * lastgaelam
            returns = advantages + values
        flat = [tensor.reshape((-1,) + tensor.shape[2:]) for tensor in
                (obs, actions, logprobs, advantages, returns, values)]
        inds = np.arange(STEPS * ENVS)
        for _ in range(EPOCHS):
            np.random.shuffle(inds)
            for start in range(0, STEPS * ENVS, STEPS * ENVS // MINIBATCHES):
                rows = inds[start:start + STEPS * ENVS // MINIBATCHES]
                run.saw(update(*(tensor[rows] for tensor in flat)))
    envs.close()
    return Training(None, [agent], [optimizer], watch=[clipfracs])


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_ppo(mode, tmp_path):
    check(ppo, mode, tmp_path)
