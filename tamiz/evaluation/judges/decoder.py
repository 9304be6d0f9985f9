"""The judge of decoders: perplexity and KL divergence of held-out windows.

    ln(1 + Δppl) + 2 standard errors    ≤  ln(1 + max_dppl)     in the mean over domains
    ln(1 + Δppl) of each domain         ≤  2 ln(1 + max_dppl)
    KL(dense ‖ built) of a new domain   ≤  ln(1 + max_dppl)  and  max_kl

    Δppl = max(ppl / ppl_dense, ppl₁₆ / ppl_dense₁₆) − 1

with ppl₁₆ over positions from 16 on. KL is what ln(ppl) loses on text that dense writes itself. It
varies less from window to window than Δppl, so it shows a loss that a few windows hide by chance,
and how much domains differ: see `tamiz.evaluation.judges.judge.unseen`.

Candidates with techniques that act on decode steps only take steps as well: on the same text, in
windows of 1,024 tokens instead of 512, so that what grows with the context shows, and there for the
last 256 tokens of each. Techniques of the attention that are inactive at short contexts get windows
as long as they need. See `tamiz.evaluation.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.evaluation.judges.judge import (
    DomainFigures,
    Figure,
    HeldOut,
    Judge,
    Measure,
    Quality,
    evenly,
    share,
    unseen,
    upper,
)
from tamiz.evaluation.windows import Window
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.system.cores import cores

if TYPE_CHECKING:
    from tamiz.evaluation.comparison import Comparison, DomainLoss
    from tamiz.survey.survey import Survey

#: Tokens that are scored, but at least a window of each domain; and most windows of each of three
#: or more domains. A standard error over 8 domains is then 0.1 to 0.2 times the loss.
_TOKENS, _OF_DOMAIN, _FEW = 16_384, 3, 3
#: Most tokens at the end of a window that are decoded step by step: what steps lose beside a prompt
#: varies little.
_STEPS = 256
#: Tokens that predictions of losses read at once: few enough that two such parts of a model of 1.5
#: billion parameters fit in 6 GB.
_PART = 256
#: Largest predicted loss that is reported as Δppl: more is no float.
_MOST_LOSS = 700.0


class DecoderJudge(Judge):
    """Measures what candidates of a decoder lose, in nats per token."""

    measures = (
        Measure(
            name="dppl",
            limit="max_dppl",
            label="Δppl",
            title="Δppl",
            axis="Δppl in percent",
            predicted="Δppl",
            of_value=lambda value: 100 * value,
            unit=" %",
        ),
        Measure(
            name="kl_mean",
            limit="max_kl",
            label="mean KL",
            title="mean KL",
            axis="mean KL in nats per token",
            predicted="Δppl",
        ),
    )
    columns = (("Δppl", "dppl"), ("mean KL", "kl_mean"), ("ppl", "ppl"), ("dense", "ppl_dense"))
    domain_columns = (
        ("Δppl", "dppl"),
        ("± ln ppl", "dppl_error"),
        ("KL", "kl"),
        ("± KL", "kl_error"),
    )
    decodes = True

    def __init__(self, dense: Bundle, goal: Goal, held_out: HeldOut, folder: Path) -> None:
        """See `Judge`."""
        from tamiz.evaluation.evaluate import steps_of
        from tamiz.evaluation.scores import DenseReference
        from tamiz.runtime.model import Model

        model = Model.load(dense.path, threads=1)
        self.goal = self.own_limits(goal)
        chosen = by_domain(held_out.windows(), held_out.context(model.limit))
        self._text = [window.tokens for window in chosen]
        self._domains = [window.origin for window in chosen]
        self._steps = steps_of(held_out.step_rows, first_step(self._text))
        self._reference = DenseReference(model, folder)
        self.windows, self.window_tokens = len(self._text), len(self._text[0])
        self.read, self.steps = held_out.origin, held_out.step_rows is not None

    @classmethod
    def is_for(cls, survey: Survey) -> bool:
        """See `Judge`."""
        return survey.decodes

    @classmethod
    def limit(cls, goal: Goal) -> float | None:
        """In nats per token."""
        budget = None if goal.max_dppl is None else math.log1p(goal.max_dppl)
        limits = [limit for limit in (goal.max_kl, budget) if limit is not None]
        return min(limits, default=None)

    @classmethod
    def own_limits(cls, goal: Goal) -> Goal:
        """See `Judge`."""
        return replace(goal, min_cosine=None)

    @classmethod
    def applicable(cls, goal: Goal, model: Path) -> Goal:
        """See `Judge`."""
        if goal.max_dppl is not None:
            return cls.own_limits(goal)
        if goal.min_cosine is not None:
            raise TamizError(
                f"{model}: --min-cosine bounds the embeddings of an encoder, found a decoder; use "
                "--max-dppl or --max-kl"
            )
        return goal

    @classmethod
    def reported(cls, loss: float) -> float | None:
        """As Δppl."""
        return math.expm1(min(loss, _MOST_LOSS))

    @classmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """Parts of the windows, whatever `most` says: no part is kept."""
        return [
            window[start : start + _PART]
            for window in windows
            for start in range(0, len(window), _PART)
        ]

    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """See `Judge`."""
        from tamiz.evaluation.evaluate import compare
        from tamiz.runtime.model import Model

        model = Model.load(candidate, threads=1)
        compared = compare(
            model, self._reference, self._text, self._steps, cores(), progress, self._domains
        )
        return quality(compared, self.goal, exact)

    @classmethod
    def headline(cls, gate: Any, trial: Any) -> tuple[str, str, str]:
        """See `Judge`."""
        loss = "not finite" if trial.dppl is None else f"{100 * trial.dppl:+.2f} %"
        parts = []
        if trial.ppl is not None and trial.ppl_dense is not None:
            parts.append(f"{trial.ppl_dense:.4g} → {trial.ppl:.4g}")
        if trial.kl_mean is not None:
            parts.append(f"mean KL {trial.kl_mean:.3g} nats per token")
        return loss, "perplexity", "; ".join(parts)

    @classmethod
    def limit_words(cls, gate: Any) -> list[str]:
        """See `Judge`."""
        words = []
        if gate.max_dppl is not None:
            words.append(f"{100 * gate.max_dppl:g} % perplexity")
        if gate.max_kl is not None:
            words.append(f"KL {gate.max_kl:g}")
        return words

    @classmethod
    def loss_words(cls, gate: Any, trial: Any) -> list[str]:
        """See `Judge`."""
        loss, error = trial.dppl, trial.dppl_error
        words = [
            f"Δppl {_percent(loss, None if error is None or loss is None else error * (1 + loss))}"
        ]
        if gate.max_dppl is not None:
            words[0] += f" of {100 * gate.max_dppl:.3g} %"
        if trial.kl is not None:
            spread = "" if trial.kl_error is None else f" ± {trial.kl_error:.2g}"
            most = cls.limit(gate)
            limit = "" if most is None else f" of {most:.3g}"
            words.append(f"mean KL {trial.kl:.3g}{spread}{limit} nats per token")
        return words

    @classmethod
    def missed_words(cls, trial: Any) -> tuple[list[str], str]:
        """See `Judge`."""
        losses = []
        if trial.dppl is not None:
            losses.append(f"{100 * trial.dppl:.2g} % of perplexity")
        if trial.kl is not None:
            losses.append(f"{trial.kl:.2g} nats of KL a token")
        return losses, "raise --max-dppl or --max-kl"


def quality(compared: Comparison, goal: Goal, exact: bool) -> Quality:
    """What a comparison with the dense model says of the limits of a goal.

    Args:
        compared: The comparison.
        goal: The limits; those of Δppl bound KL as well.
        exact: See `share`.
    """
    dppl, diverged = losses_of(compared)
    finite = math.isfinite(dppl) and math.isfinite(diverged)
    loss = max(dppl, diverged) if finite else math.inf
    shares = [0.0]
    if goal.max_kl is not None:
        shares.append(share(diverged, goal.max_kl, exact))
    if goal.max_dppl is not None:
        shares.append(share(loss, math.log1p(goal.max_dppl), exact))
    used = max(shares) if all(map(math.isfinite, shares)) else math.inf
    error = compared.dppl_error if dppl >= diverged else compared.kl_error
    figures = {
        "dppl": compared.dppl,
        "kl_mean": compared.kl_mean,
        "dppl_error": compared.dppl_error,
        "kl_error": compared.kl_error,
        "ppl": compared.built.ppl,
        "ppl_dense": compared.dense.ppl,
        "ppl_decode": compared.built.ppl_decode,
        "ppl_decode_dense": compared.dense.ppl_decode,
        "kl_decode": compared.kl_decode,
    }
    shown = (Figure(name, value) for name, value in figures.items() if value is not None)
    return Quality(loss, error, used, tuple(shown), tuple(map(_shown, compared.domains)))


def losses_of(compared: Comparison) -> tuple[float, float]:
    """Upper bounds of what is lost, in nats per token: of ln(ppl), and of KL on a new domain."""
    domains = compared.domains
    dppl = upper(
        math.log1p(compared.dppl), compared.dppl_error, [math.log1p(each.dppl) for each in domains]
    )
    diverged = upper(compared.divergence, compared.kl_error, [each.kl for each in domains])
    return dppl, max(diverged, unseen([each.kl for each in domains])) if domains else diverged


def _shown(domain: DomainLoss) -> DomainFigures:
    figures = {
        "dppl": domain.dppl,
        "dppl_error": domain.dppl_error,
        "kl": domain.kl,
        "kl_error": domain.kl_error,
    }
    found = (Figure(name, value) for name, value in figures.items() if value is not None)
    return DomainFigures(domain.name, domain.windows, tuple(found))


def first_step(windows: Sequence[Sequence[int]]) -> int:
    """The first position of windows that is decoded: late, in the middle of short ones."""
    from tamiz.evaluation.comparison import LATE

    length = len(windows[0])
    return max(LATE, length // 2, length - _STEPS)


def by_domain(windows: Sequence[Window], length: int) -> list[Window]:
    """Windows of each domain, as many of each, evenly spaced over what there is.

    Args:
        windows: Windows of one length; those of a domain that follow each other are joined.
        length: Most tokens of a joined one.
    """
    names = list(dict.fromkeys(window.origin for window in windows))
    groups = [[list(w.tokens) for w in windows if w.origin == name] for name in names]
    count = min(max(1, length // len(groups[0][0])), max(map(len, groups)))
    # All are of one length, so a domain of less text than a window is not read.
    longer = {
        name: joined(group, length)
        for name, group in zip(names, groups, strict=True)
        if len(group) >= count
    }
    most = max(1, _TOKENS // (len(longer) * count * len(groups[0][0])))
    if len(longer) >= _FEW:
        most = min(most, _OF_DOMAIN)
    return [Window(name, ids) for name, group in longer.items() for ids in evenly(group, most)]


def joined(windows: Sequence[list[int]], length: int) -> list[list[int]]:
    """Windows that follow each other as one, as many as `length` tokens hold."""
    count = min(max(1, length // len(windows[0])), len(windows))
    starts = range(0, len(windows) - count + 1, count)
    return [list(chain.from_iterable(windows[start : start + count])) for start in starts]


def _percent(value: float | None, error: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{100 * value:.3g}" + ("" if error is None else f" ± {100 * error:.2g}") + " %"
