"""The gradients of the GPT in PyTorch: ``python gpt_reference.py WEIGHTS.npz GRADIENTS.npz HEADS``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "_peers"))

from gpt_torch import GPT

given = dict(np.load(sys.argv[1]))
tokens, targets = (torch.from_numpy(given.pop(name)) for name in ("tokens", "targets"))
model = GPT(given, int(sys.argv[3]))
loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
loss.backward()
np.savez(sys.argv[2], loss=loss.detach().numpy(), **model.gradients())
