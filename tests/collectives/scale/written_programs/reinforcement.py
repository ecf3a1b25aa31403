"""Policy gradients, value functions and preferences, with episodes of unequal length."""

from __future__ import annotations

from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn

from .harness import START, Program, Rank, Reading, each_counts, mean, right, total, wrong

_random = numpy.random.default_rng(41)
EPISODES = 24
LENGTHS = 3 + _random.integers(0, 7, EPISODES)
STATES = _random.normal(size=(EPISODES, 9, 4))
ACTIONS = _random.integers(0, 3, (EPISODES, 9))
REWARDS = _random.normal(size=(EPISODES, 9))
ALIVE = (numpy.arange(9) < LENGTHS[:, None]) * 1.0
STEPS = int(LENGTHS.sum())


def discounted(rewards: Any, gamma: float = 0.9) -> Any:
    """The returns of an episode."""
    found, g = numpy.zeros(len(rewards)), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        g = rewards[t] + gamma * g
        found[t] = g
    return found


RETURNS = numpy.zeros((EPISODES, 9))
for _i in range(EPISODES):
    RETURNS[_i, : LENGTHS[_i]] = discounted(REWARDS[_i, : LENGTHS[_i]])
OLD = {name: value * 0.9 for name, value in START.items()}
_KEPT = ALIVE > 0
ADVANTAGES = (RETURNS - RETURNS[_KEPT].mean()) / RETURNS[_KEPT].std()
"""Normalised over all steps of all ranks."""


class Batch:
    """The steps of some episodes, one after another, and the logarithms of the chosen actions' probabilities."""

    def __init__(self, states: Any, actions: Any, returns: Any, advantages: Any, alive: Any, m: Any, w: Any):
        kept = alive > 0
        self.episodes, self.steps, self.alive = len(states), int(kept.sum()), alive
        self.states, self.returns, self.advantages = states[kept], returns[kept], advantages[kept]
        self.padded_states, self.padded_actions, self.padded_returns = states, actions, returns
        self.logs = ag.ops.log_softmax(self.states @ m)
        self.log_p = self.logs[numpy.arange(self.steps), actions[kept]]
        old = self.states @ OLD["m"]
        old = old - numpy.log(numpy.exp(old).sum(axis=1, keepdims=True))
        self.old = old[numpy.arange(self.steps), actions[kept]]
        self.value = self.states @ w
        self.entropy = -(np.exp(self.logs) * self.logs).sum(axis=1)
        self.padded_log_p = np.take_along_axis(ag.ops.log_softmax(states @ m), actions[..., None], axis=-1)[..., 0]
        self.weights = numpy.abs(advantages[kept]) + 0.1
        self.m = m


def own(e: Rank) -> Batch:
    states, actions, returns, advantages, alive = map(e.own, (STATES, ACTIONS, RETURNS, ADVANTAGES, ALIVE))
    return Batch(states, actions, returns, advantages, alive, e.p("m"), e.p("w"))


def every(p: Any) -> Batch:
    return Batch(STATES, ACTIONS, RETURNS, ADVANTAGES, ALIVE, p["m"], p["w"])


def reinforce(b: Batch) -> Any:
    return -b.log_p * b.advantages


def surrogate(b: Batch) -> Any:
    ratio = np.exp(b.log_p - b.old)
    return -np.minimum(ratio * b.advantages, np.clip(ratio, 0.8, 1.2) * b.advantages)


def td(b: Batch) -> Any:
    return (b.value - b.returns) ** 2


def of_returns(b: Batch) -> Any:
    """An episode's loss: the sum over its steps."""
    return (-b.padded_log_p * b.padded_returns * b.alive).sum(axis=1)


def of_episodes(b: Batch) -> Any:
    """An episode's loss: the mean over its steps."""
    return (-b.padded_log_p * b.padded_returns * b.alive).sum(axis=1) / b.alive.sum(axis=1)


def ppo(b: Batch) -> Any:
    return surrogate(b) + 0.5 * td(b) - 0.01 * b.entropy


def s(of: Any) -> Any:
    """The mean over all steps, or all episodes."""
    return lambda p, n: of(every(p)).mean()


def one_by_one(e: Rank, divide: Any) -> Any:
    """The loop of a textbook: an episode after another, and the sum of their losses divided."""
    found, steps, m = 0.0, 0, e.p("m")
    for states, actions, rewards, length in zip(*map(e.own, (STATES, ACTIONS, REWARDS, LENGTHS)), strict=True):
        logs = ag.ops.log_softmax(states[:length] @ m)
        chosen = logs[numpy.arange(length), actions[:length]]
        found = found - (chosen * discounted(rewards[:length])).sum()
        steps += int(length)
    return divide(found, len(e.own(STATES)), steps)


def centred(e: Rank, of: Any) -> Any:
    """Advantages whose mean and spread are those of all ranks, by two sums off the tape."""
    b = own(e)
    count = cc.all_reduce(ag.tensor(float(b.steps)), "dp").numpy()
    center = cc.all_reduce(ag.tensor(b.returns.sum()), "dp").numpy() / count
    spread = numpy.sqrt(cc.all_reduce(ag.tensor(((b.returns - center) ** 2).sum()), "dp").numpy() / count)
    return of(-b.log_p * (b.returns - center) / spread, float(count))


def own_centred(e: Rank, of: Any) -> Any:
    """Advantages that each rank centres by itself."""
    b = own(e)
    return of(-b.log_p * (b.returns - b.returns.mean()) / b.returns.std(), b)


def s_own_centred(p: Any, n: int) -> Any:
    found = 0.0
    for i in numpy.array_split(numpy.arange(EPISODES), n):
        b = Batch(STATES[i], ACTIONS[i], RETURNS[i], ADVANTAGES[i], ALIVE[i], p["m"], p["w"])
        found = found + (-b.log_p * (b.returns - b.returns.mean()) / b.returns.std()).sum()
    return found / STEPS


def weighted(b: Batch) -> Any:
    """Squared errors by the weights of a prioritised replay."""
    return b.weights * td(b)


def s_self_normalised(p: Any, n: int) -> Any:
    b = every(p)
    ratio = np.exp(0.3 * (b.log_p - b.old))
    return -(ratio * b.returns).sum() / ratio.sum()


def self_normalised(e: Rank, of: Any) -> Any:
    """Importance weights that are divided by their sum."""
    b = own(e)
    ratio = np.exp(0.3 * (b.log_p - b.old))
    return of(ratio, b)


def s_own_ratios(p: Any, n: int) -> Any:
    found = 0.0
    for i in numpy.array_split(numpy.arange(EPISODES), n):
        b = Batch(STATES[i], ACTIONS[i], RETURNS[i], ADVANTAGES[i], ALIVE[i], p["m"], p["w"])
        ratio = np.exp(0.3 * (b.log_p - b.old))
        found = found - (ratio * b.returns).sum() / ratio.sum()
    return found


PAIRS = _random.normal(size=(30, 2, 4))  # chosen and rejected


def preferences(pairs: Any, w: Any) -> Any:
    """The losses of DPO or of a reward model."""
    margin = (pairs[:, 0] - pairs[:, 1]) @ w - (pairs[:, 0] - pairs[:, 1]) @ OLD["w"]
    return nn.softplus(-0.5 * margin)


def s_preferences(p: Any, n: int) -> Any:
    return preferences(PAIRS, p["w"]).mean()


GROUPS = _random.normal(size=(12, 5, 4))  # five answers to each of twelve prompts
SCORES = _random.normal(size=(12, 5))


def groups(x: Any, scores: Any, w: Any) -> Any:
    """GRPO: advantages within the answers to one prompt."""
    a = (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)
    return -np.tanh(x @ w) * a


def s_groups(p: Any, n: int) -> Any:
    return groups(GROUPS, SCORES, p["w"]).mean()


def s_averaged_values(p: Any, n: int) -> Any:
    """With the mean over the ranks of the values' own means in place of half of them."""
    b, values = every(p), 0.0
    for i in numpy.array_split(numpy.arange(EPISODES), n):
        values = values + td(Batch(STATES[i], ACTIONS[i], RETURNS[i], ADVANTAGES[i], ALIVE[i], p["m"], p["w"])).mean()
    return (surrogate(b) - 0.01 * b.entropy).mean() + values / n


def own_groups(e: Rank) -> Any:
    return groups(e.own(GROUPS), e.own(SCORES), e.p("w"))


STEPS_OF_EACH = Reading("some steps of each of these episodes on each rank", each_counts(s(of_returns)), (2, 3, 4))

PROGRAMS: dict[str, Program] = {
    "REINFORCE, mean over own steps": wrong(lambda e: total(reinforce(own(e)).mean()), s(reinforce)),
    "REINFORCE, sum by own steps": wrong(
        lambda e: total((lambda b: reinforce(b).sum() / b.steps)(own(e))), s(reinforce)),
    "REINFORCE, 1 / own steps times the sum": wrong(
        lambda e: total((lambda b: (1 / b.steps) * reinforce(b).sum())(own(e))), s(reinforce)),
    "REINFORCE, sum by own episodes": wrong(
        lambda e: total(of_returns(own(e)).sum() / own(e).episodes), s(of_returns)),
    "REINFORCE, mean over own episodes": wrong(
        lambda e: total(of_returns(own(e)).mean()), s(of_returns), reading=STEPS_OF_EACH),
    "REINFORCE, means of episodes": wrong(lambda e: total(of_episodes(own(e)).mean()), s(of_episodes)),
    "REINFORCE, means of episodes, by all": right(
        lambda e: total(of_episodes(own(e)).sum() / EPISODES), s(of_episodes)),
    "REINFORCE, sums of episodes, by all": right(lambda e: total(of_returns(own(e)).sum()) / EPISODES, s(of_returns)),
    "REINFORCE, by all steps": right(lambda e: total(reinforce(own(e)).sum() / STEPS), s(reinforce)),
    "REINFORCE, share of steps times the mean": right(
        lambda e: total((lambda b: b.steps / STEPS * reinforce(b).mean())(own(e))), s(reinforce)),
    "REINFORCE, averaged, by all steps": wrong(lambda e: mean(reinforce(own(e)).sum() / STEPS), s(reinforce)),
    "REINFORCE, averaged, by all steps, times the size": right(
        lambda e: mean(e.size * (reinforce(own(e)).sum() / STEPS)), s(reinforce)),
    "REINFORCE, means of own steps, averaged": wrong(lambda e: mean(reinforce(own(e)).mean()), s(reinforce)),
    "one by one, by own episodes": wrong(
        lambda e: total(one_by_one(e, lambda x, episodes, steps: x / episodes)), s(of_returns),
        reading=STEPS_OF_EACH),
    "one by one, by own steps": wrong(
        lambda e: total(one_by_one(e, lambda x, episodes, steps: x / steps)),
        lambda p, n: of_returns(every(p)).sum() / STEPS),
    "one by one, by all episodes": right(
        lambda e: total(one_by_one(e, lambda x, episodes, steps: x / EPISODES)), s(of_returns)),
    "one by one, by all steps": right(
        lambda e: total(one_by_one(e, lambda x, episodes, steps: x / STEPS)),
        lambda p, n: of_returns(every(p)).sum() / STEPS),
    "one by one, averaged, by own episodes": right(
        lambda e: mean(one_by_one(e, lambda x, episodes, steps: x / episodes)), s(of_returns), ranks=(2, 3, 4)),
    "centred over all, by all": right(lambda e: centred(e, lambda d, count: total(d.sum()) / count), s(reinforce)),
    "centred over all, mean of own": wrong(lambda e: centred(e, lambda d, count: total(d.mean())), s(reinforce)),
    "centred over all, averaged, by all": wrong(
        lambda e: centred(e, lambda d, count: mean(d.sum() / count)), s(reinforce)),
    "centred by each rank, by all": right(
        lambda e: own_centred(e, lambda d, b: total(d.sum() / STEPS)), s_own_centred),
    "centred by each rank, mean of own": wrong(lambda e: own_centred(e, lambda d, b: total(d.mean())), s_own_centred),
    "PPO, means of own steps": wrong(lambda e: total(ppo(own(e)).mean()), s(ppo)),
    "PPO, by all steps": right(lambda e: total(ppo(own(e)).sum() / STEPS), s(ppo)),
    "PPO, entropy subtracted as a mean over ranks of own means": wrong(
        lambda e: total((surrogate(own(e)) + 0.5 * td(own(e))).sum() / STEPS) - 0.01 * total(own(e).entropy.mean()),
        s(ppo)),
    "PPO, entropy subtracted outside, averaged": wrong(
        lambda e: total((surrogate(own(e)) + 0.5 * td(own(e))).sum() / STEPS)
        - 0.01 * mean(own(e).entropy.sum() / STEPS), s(ppo)),
    "PPO, entropy in the sum as own mean": wrong(
        lambda e: total((lambda b: (surrogate(b) + 0.5 * td(b)).sum() / STEPS - 0.01 * b.entropy.mean())(own(e))),
        s(ppo)),
    "PPO, value by own steps, policy by all": wrong(
        lambda e: total((lambda b: surrogate(b).sum() / STEPS + 0.5 * td(b).mean() - 0.01 * b.entropy.sum() / STEPS)(
            own(e))), s(ppo),
        reading=Reading("0.5 is one over the number of ranks: the mean over them", s_averaged_values, (2,))),
    "PPO, three sums by all": right(
        lambda e: (lambda b: total(surrogate(b).sum()) / STEPS + 0.5 * total(td(b).sum()) / STEPS
                   - 0.01 * total(b.entropy.sum()) / STEPS)(own(e)), s(ppo)),
    "replay weights, mean": wrong(lambda e: total(weighted(own(e)).mean()), s(weighted)),
    "replay weights, by own sum": wrong(
        lambda e: total((lambda b: weighted(b).sum() / b.weights.sum())(own(e))),
        lambda p, n: weighted(every(p)).sum() / every(p).weights.sum()),
    "replay weights, by all": right(
        lambda e: total((lambda b: weighted(b).sum())(own(e))) / total(ag.tensor(own(e).weights.sum())),
        lambda p, n: weighted(every(p)).sum() / every(p).weights.sum()),
    "replay weights, by all steps": right(lambda e: total(weighted(own(e)).sum() / STEPS), s(weighted)),
    "self-normalised over all": right(
        lambda e: self_normalised(e, lambda r, b: -total((r * b.returns).sum()) / total(r.sum())), s_self_normalised),
    "self-normalised, both averaged": right(
        lambda e: self_normalised(e, lambda r, b: -mean((r * b.returns).sum()) / mean(r.sum())), s_self_normalised),
    "self-normalised, own sums": wrong(
        lambda e: self_normalised(e, lambda r, b: total(-(r * b.returns).sum() / r.sum())), s_self_normalised,
        reading=Reading("the sum of an estimate of each rank, as of one of several environments", s_own_ratios)),
    "preferences, mean": wrong(lambda e: total(preferences(e.own(PAIRS), e.p("w")).mean()), s_preferences),
    "preferences, sum by own": wrong(
        lambda e: total(preferences(e.own(PAIRS), e.p("w")).sum() / len(e.own(PAIRS))), s_preferences),
    "preferences, labelled, own mean of a cast": wrong(
        lambda e: total(cc.cast(preferences(e.labelled(PAIRS), e.p("w")), "dp", to=cc.V).mean()), s_preferences),
    "preferences, labelled, by the size": wrong(
        lambda e: total(preferences(e.labelled(PAIRS), e.p("w")).mean() / e.size), s_preferences),
    "preferences, labelled": right(lambda e: total(preferences(e.labelled(PAIRS), e.p("w")).mean()), s_preferences),
    "preferences, by all": right(
        lambda e: total((1 / 30) * preferences(e.own(PAIRS), e.p("w")).sum()), s_preferences),
    "groups, mean": wrong(lambda e: total(own_groups(e).mean()), s_groups),
    "groups, means of groups, mean": wrong(lambda e: total(own_groups(e).mean(axis=1).mean()), s_groups),
    "groups, means of groups, sum by own": wrong(
        lambda e: total(own_groups(e).mean(axis=1).sum() / len(e.own(GROUPS))), s_groups),
    "groups, means of groups, sum by all": right(lambda e: total(own_groups(e).mean(axis=1).sum() / 12), s_groups),
    "groups, averaged by a labelled mean": right(
        lambda e: total(groups(e.labelled(GROUPS), e.labelled(SCORES), e.p("w")).mean()), s_groups),
    "groups, by all answers": right(lambda e: total(own_groups(e).sum() / 60), s_groups),
}  # fmt: skip
