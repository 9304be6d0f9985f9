"""Finds the decisions of a build: plans by policy and choices, holds the model to its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.technique import Technique
from tamiz.building.decide.decider import CandidateTools, Tools
from tamiz.building.fit.selection import Slot, refused
from tamiz.building.search.back_off import Trials, lossy
from tamiz.building.search.candidates import JOINED, Candidates, applied, gate_windows
from tamiz.building.search.encoder_candidates import EncoderCandidates
from tamiz.building.search.strength import adjustable, spend_budget
from tamiz.calibration import file as calibrations
from tamiz.calibration.file import WINDOW, Calibration
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice, step_rows
from tamiz.planning.plan import Plan, acting_context, make_plan
from tamiz.planning.policy import Rules, Tuning, read_policy
from tamiz.reporting.gate import SWITCHED_OFF, WholeModelGate

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.model import Model


@dataclass(frozen=True)
class Search:
    """A decider that searches; see `tamiz.building.decide.decider.Decider`.

    Attributes:
        techniques: The declared techniques by name.
        choices: Techniques to use wherever they can act.
        on_conflict: ``error`` or ``drop``; see `tamiz.planning.plan.make_plan`.
        policy_file: A policy's file.
        calibration_file: A calibration's file.
        autotune: Whether to try several configurations where the policy does not say.
        strip_dense: Whether dense weights are removed where the policy does not say.
        max_dppl: Largest accepted Δppl of the whole model; None for no such gate.
        min_cosine: Smallest accepted mean cosine of an encoder's embeddings; None for no such gate.
    """

    techniques: Mapping[str, Technique]
    choices: Sequence[Choice]
    on_conflict: str
    policy_file: Path | None
    calibration_file: Path | None
    autotune: bool
    strip_dense: bool
    max_dppl: float | None
    min_cosine: float | None

    def calibration(self, tools: Tools) -> Calibration | None:
        """The calibration that was given, or one of the model's own text where a fit needs it."""
        survey = tools.survey
        if self.calibration_file is not None:
            return calibrations.load(self.calibration_file, survey.bundle)
        # A conflict is reported before the minutes that a text takes.
        sites = self.plan(tools, None).sites
        planned = (choice for site in sites for choice in (*site.choices, *site.fallbacks))
        if not any(choice.technique.calibrated for choice in planned):
            return None
        return tools.calibrate_on_own_text()

    def plan(self, tools: Tools, known: Calibration | None) -> Plan:
        """The plan of choices and policy."""
        sites, policy = tools.survey.sites, None
        if self.policy_file is not None:
            policy = read_policy(self.policy_file, self.techniques, sites)
        base = Rules(strip=self.strip_dense, tuning=Tuning(enabled=self.autotune))
        return make_plan(sites, self.choices, self.on_conflict, policy, base)

    def gate(
        self,
        slots: list[Slot],
        tools: Tools,
        known: Calibration | None,
        candidates: CandidateTools,
    ) -> tuple[list[Slot], WholeModelGate]:
        """Holds the whole model to its budget by building and measuring candidates."""
        from tamiz.runtime.embedding.encoder import Encoder
        from tamiz.runtime.load import load_model

        encoder = not tools.survey.gives_logits
        skipped = None
        if (self.min_cosine if encoder else self.max_dppl) is None:
            skipped = SWITCHED_OFF
        elif not lossy(slots):
            skipped = "nothing that was applied loses anything"
        elif encoder and (known is None or not known.tokens):
            skipped = (
                "a model without logits writes no text, so a file of 'tamiz calibrate' is needed"
            )
        else:
            try:
                dense = load_model(tools.survey.bundle.path, threads=1)
            except TamizError as error:
                skipped = f"the dense model cannot be scored: {error}"
        if skipped is not None:
            return slots, WholeModelGate(
                max_dppl=None if encoder else self.max_dppl,
                min_cosine=self.min_cosine if encoder else None,
                skipped=skipped,
            )
        if isinstance(dense, Encoder):
            return self._gate_encoder(dense, slots, tools, known, candidates)
        return self._gate_decoder(dense, slots, tools, known, candidates)

    def _gate_decoder(
        self,
        dense: Model,
        slots: list[Slot],
        tools: Tools,
        known: Calibration | None,
        candidates: CandidateTools,
    ) -> tuple[list[Slot], WholeModelGate]:
        from tamiz.evaluation.scores import Reference

        assert self.max_dppl is not None
        rows = step_rows(applied(slots))
        length = WINDOW
        if rows or adjustable(slots):
            plans = [slot.site_plan for slot in slots]
            length = acting_context(tools.survey, plans, JOINED, dense.limit)
        windows = gate_windows(dense, known, length, tools.progress)
        reference, folder = Reference(dense, tools.work), tools.work / "candidate"
        scored = Candidates(reference, windows, rows, folder, candidates.write, tools.progress)
        gated = spend_budget(
            slots, Trials(math.log1p(self.max_dppl), scored.score, candidates.fill)
        )
        given = known is not None and self.calibration_file is not None
        return gated.slots, WholeModelGate(
            max_dppl=self.max_dppl,
            text="calibration" if given else "the model's own",
            windows=len(windows),
            window_tokens=len(windows[0]),
            decode=rows is not None,
            trials=gated.trials,
            built=gated.built,
        )

    def _gate_encoder(
        self,
        dense: Encoder,
        slots: list[Slot],
        tools: Tools,
        known: Calibration | None,
        candidates: CandidateTools,
    ) -> tuple[list[Slot], WholeModelGate]:
        assert self.min_cosine is not None
        assert known is not None
        folder = tools.work / "candidate"
        windows = known.judging or known.tokens
        scored = EncoderCandidates(dense, windows, folder, candidates.write, tools.progress)
        trials = Trials(1 - self.min_cosine, scored.score, candidates.fill, of_texts=True)
        gated = spend_budget(slots, trials)
        return gated.slots, scored.gate(gated.trials, gated.built, self.min_cosine)

    def refused(self, slots: Sequence[Slot]) -> dict[str, list[str]]:
        """Techniques that a gate, their fit or their rewrite refused."""
        return refused(slots)
