"""Values drawn from the distributions of a search space, by a numpy RandomState that the caller has."""

from math import exp, log

__all__ = [
    "choice", "lognormal", "loguniform", "normal", "qlognormal", "qloguniform", "qnormal", "quniform", "randint",
    "uniform",
]  # fmt: skip


def _rounded(value, q):
    """To a multiple of q; a float even where q is whole."""
    return float(round(value / q) * q)


def choice(options, random_state):
    """One of the options, each as likely."""
    return options[random_state.randint(len(options))]


def randint(lower, upper, random_state):
    """A whole number from lower up to, but without, upper."""
    return random_state.randint(lower, upper)


def uniform(low, high, random_state):
    """A number between two ends."""
    assert high >= low, "Upper bound must be larger than lower bound"
    return random_state.uniform(low, high)


def quniform(low, high, q, random_state):
    """The same, rounded to multiples of q and kept between the ends."""
    return min(max(_rounded(uniform(low, high, random_state), q), low), high)


def loguniform(low, high, random_state):
    """A number whose logarithm is uniform."""
    assert low > 0, "Lower bound must be positive"
    return exp(uniform(log(low), log(high), random_state))


def qloguniform(low, high, q, random_state):
    """The same, rounded to multiples of q and kept between the ends."""
    return min(max(_rounded(loguniform(low, high, random_state), q), low), high)


def normal(mu, sigma, random_state):
    """A number around mu."""
    return random_state.normal(mu, sigma)


def qnormal(mu, sigma, q, random_state):
    """The same, rounded to multiples of q."""
    return _rounded(normal(mu, sigma, random_state), q)


def lognormal(mu, sigma, random_state):
    """A number whose logarithm is normal."""
    return exp(normal(mu, sigma, random_state))


def qlognormal(mu, sigma, q, random_state):
    """The same, rounded to multiples of q."""
    return _rounded(lognormal(mu, sigma, random_state), q)
