"""One place for a technique at a site, and its fit: the technique's, a fallback's, or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tamiz.api.technique import Resource
from tamiz.building.fit.fitting import Attempt, Fitted
from tamiz.planning.choice import Choice
from tamiz.planning.resolver import SitePlan

#: Reason of a refusal after the fit of the site has passed its own gate.
_BACKED_OFF = "backed off by the gate of the whole model"


@dataclass(frozen=True)
class Decision:
    """One place for a technique at a site, and the candidates for it.

    Attributes:
        site_plan: The site's plan.
        waiting: Candidates that are not fitted yet: the chosen technique, then its fallbacks, each
            with the number of its configurations that were tried before.
        fitted: Results so far.
        backed_off: Number of passed fits that the gate of the whole model has refused.
        left_out: Reason why the accepted fit was not written after all; None if it was.
    """

    site_plan: SitePlan
    waiting: tuple[tuple[Choice, int], ...]
    fitted: tuple[Fitted, ...] = field(default=())
    backed_off: int = 0
    left_out: str | None = None

    @property
    def passed(self) -> list[Fitted]:
        """Fits that passed the gate and that the whole model allows, in order."""
        return [fitted for fitted in self.fitted if fitted.passed][self.backed_off :]

    @property
    def accepted(self) -> Attempt | None:
        """The fit that this decision applies; None if the decision is empty."""
        return self.passed[0].attempt if self.passed and self.left_out is None else None

    @property
    def needs_fit(self) -> bool:
        """Whether the decision is empty and a candidate is left to try."""
        return not self.passed and bool(self.waiting)

    @property
    def has_milder(self) -> bool:
        """Whether autotune has another configuration of the accepted technique."""
        return bool(self.passed) and self.passed[0].left > 0

    @property
    def is_fragile(self) -> bool:
        """Whether the accepted technique says that its fit does not tell what the model loses."""
        autotune = self.passed[0].choice.technique.autotune if self.has_milder else None
        if autotune is None or autotune.fragile is None:
            return False
        return autotune.fragile(self.site_plan.site)

    def back_off(self) -> Decision:
        """Refuses the accepted fit; autotune's next configuration comes before the fallbacks."""
        refused = self.passed[0]
        more = ((refused.choice, refused.tried),) if refused.left else ()
        return replace(self, backed_off=self.backed_off + 1, waiting=(*more, *self.waiting))

    def outcomes(self) -> list[tuple[Fitted, bool, str]]:
        """For what was fitted: whether it is applied, and why."""
        passed = [fitted for fitted in self.fitted if fitted.passed]
        result = []
        for fitted in self.fitted:
            if not fitted.passed:
                refusal = fitted.attempt.verdict.refusal
                result.append((fitted, False, f"refused: {refusal}"))
            elif (number := passed.index(fitted)) < self.backed_off:
                taken = _instead(fitted, passed[number + 1 :])
                result.append((fitted, False, f"refused: {_BACKED_OFF}{taken}"))
            elif self.left_out is not None:
                result.append((fitted, False, f"refused: {self.left_out}"))
            else:
                result.append((fitted, True, "passed the gate"))
        return result


def _instead(refused: Fitted, later: Sequence[Fitted]) -> str:
    """The settings with which the same technique passed next; empty where another one did."""
    before = refused.attempt.choice
    if not later or later[0].attempt.choice.technique is not before.technique:
        return ""
    old, new = before.config.model_dump(), later[0].attempt.choice.config.model_dump()
    changed = (f"{name}={value}" for name, value in new.items() if old[name] != value)
    return f", to {', '.join(changed)}"


def decisions_of(site_plan: SitePlan) -> list[Decision]:
    """The decisions of a site's plan, nothing of them fitted."""
    decisions = []
    for choice in site_plan.choices:
        owns = any(claim.resource is Resource.WEIGHTS for claim in choice.technique.claims)
        fallbacks = site_plan.fallbacks if owns else ()
        decisions.append(Decision(site_plan, tuple((owner, 0) for owner in (choice, *fallbacks))))
    return decisions


def accepted(decisions: Iterable[Decision]) -> dict[str, list[Attempt]]:
    """Fits to apply by site id, in order; none after a decision that stays empty.

    Techniques after an empty decision may need what that decision would have provided.
    """
    attempts: dict[str, list[Attempt]] = {}
    closed: set[str] = set()
    for decision in decisions:
        site = decision.site_plan.site.id
        if decision.accepted is None:
            closed.add(site)
        elif site not in closed:
            attempts.setdefault(site, []).append(decision.accepted)
    return attempts


def leave_out(
    decisions: Iterable[Decision], refused: Mapping[tuple[str, str], str]
) -> list[Decision]:
    """The decisions after the rewrites: at a site, all that follow an empty one are empty.

    Args:
        decisions: The decisions that were written.
        refused: Reason why a rewrite changed nothing, by site id and technique's name.
    """
    result = []
    closed: dict[str, str] = {}
    for decision in decisions:
        site = decision.site_plan.site.id
        candidate = decision.accepted or decision.fitted[0].attempt
        name = candidate.choice.technique.name
        reason = refused.get((site, name))
        if site in closed:
            reason = f"{closed[site]}, which comes before it, was refused"
        decision = replace(decision, left_out=reason)
        if decision.accepted is None:
            closed.setdefault(site, name)
        result.append(decision)
    return result


def refused(decisions: Iterable[Decision]) -> dict[str, list[str]]:
    """Techniques that a gate, their own fit or their rewrite refused, by site id."""
    names_at: dict[str, list[str]] = {}
    for decision in decisions:
        outcomes = [(f.choice.technique.name, applied) for f, applied, _ in decision.outcomes()]
        names = dict.fromkeys(name for name, _ in outcomes if (name, True) not in outcomes)
        if names:
            names_at.setdefault(decision.site_plan.site.id, []).extend(names)
    return names_at


def by_site(decisions: Iterable[Decision]) -> Mapping[str, list[Decision]]:
    """Decisions by site id, in order."""
    decisions_at: dict[str, list[Decision]] = {}
    for decision in decisions:
        decisions_at.setdefault(decision.site_plan.site.id, []).append(decision)
    return decisions_at


def changes_a_value(decisions: Iterable[Decision]) -> bool:
    """Whether an accepted fit loses anything."""
    accepted_fits = (decision.accepted for decision in decisions)
    return any(attempt is not None and not attempt.exact for attempt in accepted_fits)


def applied(decisions: Iterable[Decision]) -> list[Choice]:
    """What decisions apply."""
    return [decision.accepted.choice for decision in decisions if decision.accepted]
