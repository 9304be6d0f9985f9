"""Plans by policy and flags, and holds the whole model to its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tamiz.api.technique import Technique
from tamiz.building.decide.decider import CandidateTools, Tools
from tamiz.building.decision import Decision, applied, changes_a_value, refused
from tamiz.building.options import Options
from tamiz.building.search.back_off import without_losses
from tamiz.building.search.strength import adjustable, spend_budget
from tamiz.calibration.calibration import WINDOW, Calibration
from tamiz.evaluation.judges.judge import JOINED, HeldOut, Judge
from tamiz.evaluation.windows import Window
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice, step_rows
from tamiz.planning.costs import acting_context
from tamiz.planning.goal import Goal
from tamiz.planning.plan import Plan, make_plan
from tamiz.planning.policy import Rules, Tuning, read_policy
from tamiz.planning.recipes import recipes
from tamiz.reporting.gate import NOTHING_LOSSY, SWITCHED_OFF, WholeModelGate


@dataclass(frozen=True)
class ByPolicy:
    """A decider that follows policy and flags; see `tamiz.building.decide.decider.Decider`.

    Attributes:
        techniques: The declared techniques by name.
        choices: Techniques to use wherever they can act.
        options: Policy, budgets and switches of the build.
    """

    techniques: Mapping[str, Technique]
    choices: Sequence[Choice]
    options: Options

    def start(self, tools: Tools) -> PolicyCourse:
        """The plan, with a calibration of the model's own text where a fit needs it."""
        return self._with_recipe(tools.judge)._start(tools)

    def _start(self, tools: Tools) -> PolicyCourse:
        plan = self._plan(tools)  # a conflict is reported before the minutes that a text takes
        planned = (choice for site in plan.sites for choice in (*site.choices, *site.fallbacks))
        needed = any(choice.technique.calibrated for choice in planned)
        budget = Goal(max_dppl=self.options.max_dppl, min_cosine=self.options.min_cosine)
        goal = tools.judge.own_limits(budget)
        return PolicyCourse(tools, goal, plan, tools.calibration(needed))

    def _with_recipe(self, judge: type[Judge]) -> ByPolicy:
        """The decider with the recipe that a kind of model gets where nothing is requested.

        It stays as it is where something is requested, where nothing is on by default, and where
        the loss would not be measured.
        """
        options = self.options
        requested = options.policy or options.off or any(c.requested for c in self.choices)
        idle = not self.choices or options.min_cosine is None
        if judge.recipe is None or requested or idle:
            return self
        assert options.min_cosine is not None
        recipe = recipes()[judge.recipe]
        added = [
            Choice.of(self.techniques[name], fields, requested=False)
            for name, fields in recipe.techniques.items()
            if name in self.techniques
        ]
        least = max(options.min_cosine, recipe.min_cosine or 0.0)
        autotune = recipe.autotune if options.autotune is None else options.autotune
        options = replace(options, min_cosine=least, autotune=autotune)
        return replace(self, choices=[*self.choices, *added], options=options)

    def _plan(self, tools: Tools) -> Plan:
        sites, policy, options = tools.survey.sites, None, self.options
        if options.policy is not None:
            policy = read_policy(options.policy, self.techniques, sites)
        base = Rules(strip=options.strip_dense, tuning=Tuning(enabled=bool(options.autotune)))
        return make_plan(sites, self.choices, options.on_conflict, policy, base)


@dataclass(frozen=True)
class PolicyCourse:
    """A plan by policy, and the budget of the whole model.

    Attributes:
        tools: What the decider works with.
        goal: The budget.
        plan: The plan.
        calibration: What fits and gates read.
    """

    tools: Tools
    goal: Goal
    plan: Plan
    calibration: Calibration | None

    def gate(
        self, decisions: list[Decision], candidates: CandidateTools
    ) -> tuple[list[Decision], WholeModelGate]:
        """Holds the whole model to its budget by building and measuring candidates."""
        if (reason := self._needs_no_gate(decisions)) is not None:
            return decisions, WholeModelGate.not_run(self.goal, reason)
        try:
            judge = self._judge(decisions)
        except TamizError as error:
            # The bundle may be a temporary one, which is gone when people read this.
            reason = str(error).replace(f"{self.tools.survey.bundle.path}/", "")
            exact = without_losses(decisions, candidates.fill)
            return exact, WholeModelGate.not_run(self.goal, f"{NOTHING_LOSSY}: {reason}")
        measured = candidates.judged_by(judge)
        kept = spend_budget(decisions, measured)
        holding = [index for index, trial in enumerate(measured.trials) if trial.holds]
        built = max(holding, default=None) if changes_a_value(kept) else None
        return kept, WholeModelGate.of(judge, measured.trials, built)

    def refused(self, decisions: Sequence[Decision]) -> dict[str, list[str]]:
        """Techniques that a gate, their fit or their rewrite refused."""
        return refused(decisions)

    def _needs_no_gate(self, decisions: Sequence[Decision]) -> str | None:
        """Why the whole model is not measured; None where it is."""
        judge = self.tools.judge
        if judge.limit(self.goal) is None:
            return SWITCHED_OFF
        if not changes_a_value(decisions):
            return "nothing that was applied loses anything"
        return None

    @property
    def _known_text(self) -> list[Window]:
        """Windows of the calibration that nothing was fitted to, else those that it keeps."""
        calibration = self.calibration
        return [] if calibration is None else calibration.held_out or calibration.fitting

    def _judge(self, decisions: Sequence[Decision]) -> Judge:
        """The judge, who reads windows as long as the techniques need.

        Raises:
            TamizError: The dense model cannot be scored.
        """
        tools, survey = self.tools, self.tools.survey
        plans = [decision.site_plan for decision in decisions]
        rows = step_rows(applied(decisions))
        grows = bool(rows or adjustable(decisions))

        def context(most: int) -> int:
            return acting_context(survey, plans, JOINED, most) if grows else min(WINDOW, most)

        def windows() -> list[Window]:
            return self._known_text or tools.judging_windows()

        held_out = HeldOut(
            windows, tools.text_read, context, rows, tools.samples, survey.vocabulary
        )
        return tools.judge(survey.bundle, self.goal, held_out, tools.work)
