"""What a built model loses against the dense one, from scores by position: in all, and by domain.

The mean over a text of several domains is the mean of the domains' means, however many windows each
has. Its standard error says how far another choice of domains would have moved it: that of three or
more domains is taken over domains, that of fewer over windows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

#: First position that does not count as early.
LATE = 16
#: Fewest domains over which a standard error is taken.
_DOMAINS = 3

Float64 = NDArray[np.float64]


class Row(IntEnum):
    """Rows of scores; those of steps follow those of a prompt."""

    NLL_DENSE = 0
    NLL = 1
    KL = 2
    TOP1 = 3
    RECALL = 4
    NLL_STEPS = 5
    KL_STEPS = 6
    TOP1_STEPS = 7
    RECALL_STEPS = 8


@dataclass(frozen=True)
class DomainLoss:
    """What a built model loses on one domain of a text.

    Attributes:
        name: The domain.
        windows: Windows that were read.
        dppl: Δppl.
        kl: Mean KL divergence in nats, of prompts or of decode steps, whichever is larger.
        dppl_error: Standard error of ln(1 + `dppl`) over windows; None for a single window.
        kl_error: Likewise of `kl`.
    """

    name: str
    windows: int
    dppl: float
    kl: float
    dppl_error: float | None = None
    kl_error: float | None = None


@dataclass(frozen=True)
class Perplexities:
    """Perplexity of a model on a text.

    Attributes:
        ppl: Over all scored positions.
        ppl_from_16: Over positions ≥ 16 of each window.
        ppl_decode: Over the positions that are read token by token; None if none are. Of dense,
            which reads prompts only: over the same positions.
    """

    ppl: float
    ppl_from_16: float
    ppl_decode: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A built model against dense.

    Attributes:
        built: Of the built model.
        dense: Of the dense model.
        dppl: How much worse the built model's perplexity is, as a fraction of dense's; see above.
        kl_mean: Mean KL(dense‖built) of the scored positions, in nats.
        top1_agreement: Fraction of positions where both give the same likeliest token.
        kl_decode: `kl_mean` of a model that reads in steps: from position 16 on as a prompt, and
            what steps add to it in the positions that are read both ways.
        top1_agreement_decode: `top1_agreement` there.
        top10_recall_decode: Fraction of dense's 10 likeliest tokens there that are among the
            built model's 10.
        dppl_error: Standard error of ln(1 + `dppl`); None for a single window.
        kl_error: Standard error of the larger of `kl_mean` and `kl_decode`; None for a single
            window.
        domains: The losses on each domain of the text; none where no domains were named.
    """

    built: Perplexities
    dense: Perplexities
    dppl: float
    kl_mean: float
    top1_agreement: float
    kl_decode: float | None = None
    top1_agreement_decode: float | None = None
    top10_recall_decode: float | None = None
    dppl_error: float | None = None
    kl_error: float | None = None
    domains: tuple[DomainLoss, ...] = ()

    @property
    def divergence(self) -> float:
        """The larger KL divergence, of prompts or of decode steps where these were taken."""
        return self.kl_mean if self.kl_decode is None else max(self.kl_mean, self.kl_decode)


def comparison(
    scores: Ids[Float64], start: int | None, domains: Ids[str] | None = None
) -> Comparison:
    """What the rows of all windows say in the mean.

    Args:
        scores: Of every window, rows ``[Row, positions]``.
        start: First position that is read in steps; None if none is.
        domains: Name of each window's domain; None for a text of a single one.
    """

    def ppl(row: Row, first: int) -> float:
        return float(np.exp(mean_score(scores, row, first)))

    def of_steps(value: Callable[[Row, int], float], row: Row) -> float | None:
        return None if start is None else value(row, start)

    def mean(row: Row, first: int) -> float:
        return mean_score(scores, row, first)

    lost_rows = [(r[Row.NLL] - r[Row.NLL_DENSE], r[Row.NLL_STEPS] - r[Row.NLL]) for r in scores]
    lost = _ByDomain(_by_way(lost_rows, start), domains)
    kl_rows = [(r[Row.KL], r[Row.KL_STEPS] - r[Row.KL]) for r in scores]
    kl = _ByDomain(_by_way(kl_rows, start)[:, ::2], domains)
    return Comparison(
        built=Perplexities(ppl(Row.NLL, 1), ppl(Row.NLL, LATE), of_steps(ppl, Row.NLL_STEPS)),
        dense=Perplexities(
            ppl(Row.NLL_DENSE, 1), ppl(Row.NLL_DENSE, LATE), of_steps(ppl, Row.NLL_DENSE)
        ),
        dppl=float(np.expm1(lost.means.mean(axis=0)[lost.worst])),
        kl_mean=float(kl.means.mean(axis=0)[0]),
        top1_agreement=mean(Row.TOP1, 1),
        kl_decode=None if start is None else float(kl.means.mean(axis=0)[1]),
        top1_agreement_decode=of_steps(mean, Row.TOP1_STEPS),
        top10_recall_decode=of_steps(mean, Row.RECALL_STEPS),
        dppl_error=lost.error,
        kl_error=kl.error,
        domains=() if domains is None else _losses(lost, kl),
    )


class _ByDomain:
    """Losses by window and way of reading, and their means over domains.

    Attributes:
        names: The domains.
        of_domain: Losses ``[windows, ways]`` of each domain.
        means: Their means, ``[domains, ways]``.
        worst: The way that loses most in the mean over domains.
    """

    def __init__(self, losses: Float64, domains: Ids[str] | None) -> None:
        self._all = losses
        labels = np.array(domains if domains is not None else [""] * len(losses), np.str_)
        self.names = list(dict.fromkeys(labels.tolist()))
        self.of_domain = [losses[labels == name] for name in self.names]
        self.means = np.array([part.mean(axis=0) for part in self.of_domain])
        self.worst = int(self.means.mean(axis=0).argmax())

    @property
    def error(self) -> float | None:
        """Standard error of the loss in the worst way."""
        values = self.means if len(self.names) >= _DOMAINS else self._all
        return _standard_error(values[:, self.worst])


def _losses(lost: _ByDomain, kl: _ByDomain) -> tuple[DomainLoss, ...]:
    """The losses of each domain, read in the ways that lose most in the mean over domains."""
    return tuple(
        DomainLoss(
            name,
            len(lost.of_domain[i]),
            float(np.expm1(lost.means[i, lost.worst])),
            float(kl.means[i, kl.worst]),
            _standard_error(lost.of_domain[i][:, lost.worst]),
            _standard_error(kl.of_domain[i][:, kl.worst]),
        )
        for i, name in enumerate(lost.names)
    )


def _by_way(rows: Ids[tuple[Float64, Float64]], start: int | None) -> Float64:
    """What a model loses in every window ``[windows, ways]`` by way of reading: as a prompt, as a
    prompt from position 16 on, and in steps.

    A step loses what a prompt loses from position 16 on, and what it loses more in the positions
    that are read both ways. This difference varies little, so few steps suffice.

    Args:
        rows: Of every window: what is lost as a prompt, and how much more in steps, by position.
        start: First position that is read in steps; None if none is.
    """
    found = []
    for prompt, more in rows:
        late = prompt[LATE - 1 :].mean()
        steps = [] if start is None else [late + more[start - 1 :].mean()]
        found.append([prompt.mean(), late, *steps])
    return np.array(found)


def _standard_error(values: Float64) -> float | None:
    """Standard error of the mean of some numbers; None for a single one."""
    return None if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def mean_score(scores: Ids[Float64], row: int, start: int) -> float:
    """Mean of one of the rows ``[rows, positions]`` of all windows from a position on.

    The first position of a window that is scored is 1.
    """
    return float(np.concatenate([rows[row, start - 1 :] for rows in scores]).mean())
