"""Windows and clocks between processes."""

from __future__ import annotations

import collectives as cc
from tests.collectives.transports.windows_cases import conforms

conforms(cc.world())
