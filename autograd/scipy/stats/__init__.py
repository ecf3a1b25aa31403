"""Distributions under SciPy's names: ``import autograd.scipy.stats as stats; stats.norm.logpdf(x, mean, scale)``."""

from __future__ import annotations

from . import beta, chi2, dirichlet, gamma, multivariate_normal, norm, poisson, t

__all__ = ["beta", "chi2", "dirichlet", "gamma", "multivariate_normal", "norm", "poisson", "t"]
