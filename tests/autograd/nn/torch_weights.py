"""Torch's side of `test_torch_weights.py`, by a Python that has torch: ``python torch_weights.py write|read FOLDER``.

``write`` makes each module of `CASES`, and writes its state with safetensors, and what it computes from `inputs`.
``read`` reads the states that ringtape has written, and writes what the modules compute then. Nothing of ringtape is
imported here, and torch only by the program, because the tests read the tables.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, tuple[Any, ...]] = {  # a module, as both write it, and its inputs: shapes, or [below, *shape]
    "Linear(5, 3)": ((4, 5),),
    "Linear(4, 4, bias=False)": ((4, 4),),
    "Embedding(7, 4)": ([7, 3, 5],),
    "Conv1d(4, 6, 3, padding=1, groups=2)": ((2, 4, 9),),
    "Conv2d(3, 3, 3)": ((2, 3, 6, 5),),
    "LayerNorm(6)": ((2, 3, 6),),
    "RMSNorm(6)": ((2, 3, 6),),
    "GroupNorm(2, 6)": ((3, 6, 4),),
    "BatchNorm1d(3)": ((5, 3),),
    "BatchNorm2d(3)": ((2, 3, 4, 5),),
    "RNNCell(3, 3)": ((2, 3), (2, 3)),
    "LSTMCell(4, 3)": ((2, 4),),
    "GRUCell(3, 3, bias=False)": ((2, 3), (2, 3)),
    "LSTM(4, 4, num_layers=2, bidirectional=True, batch_first=True)": ((2, 5, 4),),
    "MultiheadAttention(8, 2, batch_first=True)": ((2, 5, 8), (2, 4, 8), (2, 4, 8)),
    "TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)": ((2, 5, 8),),
    "TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True, bias=False)": ((2, 5, 8),),
    "Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))":
        ((6, 4),),
}  # fmt: skip
DTYPES = ("float32", "float64")


def inputs(case: str, dtype: str) -> list[Any]:
    """The inputs of a case: the same in both programs."""
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    return [rng.integers(0, x[0], x[1:]) if isinstance(x, list) else rng.standard_normal(x).astype(dtype)
            for x in CASES[case]]  # fmt: skip


def leaves(y: Any) -> list[Any]:
    """The Tensors of a result, in order."""
    return [z for x in y for z in leaves(x)] if isinstance(y, tuple | list) else [] if y is None else [y]


def main(what: str, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file, save_model
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.body, self.lm_head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
            self.lm_head.weight = self.wte.weight

    def values(y: Any) -> dict[str, Any]:
        return {str(i): x.detach().contiguous() for i, x in enumerate(leaves(y))}

    def name(i: int, dtype: str, of: str) -> Path:
        return folder / f"{i}.{dtype}.{of}.safetensors"

    torch.manual_seed(0)
    torch.set_num_threads(1)
    for i, case in enumerate(CASES):
        for dtype in DTYPES:
            module = eval("nn." + case).to(getattr(torch, dtype)).eval()
            if what == "write":
                with torch.no_grad():
                    for x in (*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())):
                        x.copy_(torch.rand(x.shape) + 0.1)
                save_file(module.state_dict(), name(i, dtype, "state"))
            else:
                module.load_state_dict(load_file(name(i, dtype, "ours")))
            y = module(*(torch.tensor(x) for x in inputs(case, dtype)))
            save_file(values(y), name(i, dtype, "out" if what == "write" else "again"))
    tied = Tied()
    if what == "write":
        save_model(tied, folder / "tied.safetensors")  # leaves out one of the two names
        both = {f"model.{key}": x.clone() for key, x in tied.state_dict().items()}
        save_file(both, folder / "both.safetensors")
        save_file({key: x.bfloat16() for key, x in nn.Linear(4, 4).state_dict().items()}, folder / "half.safetensors")
    else:
        missing = tied.load_state_dict(load_file(folder / "tied.ours.safetensors"), strict=False)
        assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
        save_file({"w": tied.lm_head.weight.detach()}, folder / "tied.again.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
