"""Differentiable distributions of ``scipy.stats``, such as ``stats.norm.logpdf(x, loc, scale)``."""

from __future__ import annotations

from . import beta, chi2, dirichlet, gamma, multivariate_normal, norm, poisson, t

__all__ = ["beta", "chi2", "dirichlet", "gamma", "multivariate_normal", "norm", "poisson", "t"]
