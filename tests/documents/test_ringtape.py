"""`import ringtape`: the three packages under the name of the distribution."""

from __future__ import annotations

import subprocess
import sys

import pytest

import autograd
import collectives
import parallel
import ringtape


def test_the_packages_are_attributes() -> None:
    assert ringtape.autograd is autograd
    assert ringtape.collectives is collectives
    assert ringtape.parallel is parallel
    assert ringtape.__version__ == autograd.__version__ == collectives.__version__ == parallel.__version__
    assert dir(ringtape) == ringtape.__all__


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grad'; it has autograd, collectives, parallel"):
        _ = ringtape.grad


def test_a_package_is_loaded_when_it_is_asked_for() -> None:
    text = (
        "import sys, ringtape\n"
        "assert 'collectives' not in sys.modules and 'parallel' not in sys.modules\n"
        "ringtape.parallel\n"
        "assert 'collectives' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
