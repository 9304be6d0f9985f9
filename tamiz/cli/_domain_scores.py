"""Scores of a bundle on the domains of the text that ships with tamiz."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tamiz.cli._output import print_table

if TYPE_CHECKING:
    from tamiz.evaluation.scores import Steps
    from tamiz.reporting.gate import TrialReport
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.model import Model


def of_decoder(
    built: Model,
    dense: Model,
    names: Sequence[str],
    window: int,
    steps: Steps | None,
    at_once: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """What a decoder loses: in the mean over domains, on each, and what a new domain would lose.

    Args:
        built: The decoder.
        dense: What to compare with.
        names: The domains.
        window: Tokens of a window.
        steps: How to score in decode steps as well; None for not at all.
        at_once: Windows to read side by side.
        progress: Takes a sentence that says how far the scoring is.

    Raises:
        TamizError: The models have other vocabularies.
    """
    from tamiz.calibration.calibrate import window_length
    from tamiz.calibration.domains import shipped_windows
    from tamiz.evaluation.evaluate import compare
    from tamiz.evaluation.judges.decoder import by_domain
    from tamiz.evaluation.judges.judge import unseen
    from tamiz.evaluation.scores import DenseReference

    length = min(window, window_length(built.bundle))
    chosen = by_domain(shipped_windows(built.bundle, "judge", length, names), window)
    texts, origins = [w.tokens for w in chosen], [w.origin for w in chosen]

    def done(count: int) -> None:
        progress(f"{count} of {len(texts)} windows are scored")

    compared = compare(built, DenseReference(dense), texts, steps, at_once, done, origins)
    domains = {
        each.name: {
            "windows": each.windows,
            "dppl": each.dppl,
            "dppl_error": each.dppl_error,
            "kl": each.kl,
            "kl_error": each.kl_error,
        }
        for each in compared.domains
    }
    return {
        "domains": domains,
        "domains_dppl": compared.dppl,
        "domains_dppl_error": compared.dppl_error,
        "domains_kl": compared.divergence,
        "domains_kl_error": compared.kl_error,
        "new_domain_kl": unseen([each.kl for each in compared.domains]),
    }


def of_encoder(
    built: Encoder, dense: Encoder, names: Sequence[str], at_once: int
) -> dict[str, Any]:
    """Cosines of an encoder's embeddings with those of another, by domain.

    Args:
        built: The encoder.
        dense: What to compare with.
        names: The domains.
        at_once: Runs side by side.
    """
    import numpy as np

    from tamiz.calibration.calibrate import window_length
    from tamiz.calibration.domains import shipped_windows
    from tamiz.evaluation.embeddings import cosines, read
    from tamiz.evaluation.judges.encoder import passages_and_queries

    bundle = built.bundle
    windows = shipped_windows(bundle, "judge", window_length(bundle), names)
    domains: dict[str, Any] = {}
    for name, part in passages_and_queries(windows, bundle).items():
        models = [read(model.embeddings, part, at_once) for model in (dense, built)]
        domains[name] = {"texts": len(part), "cosine": float(cosines(*models).mean())}
    mean = float(np.mean([each["cosine"] for each in domains.values()]))
    return {"domains": domains, "domains_cosine": mean}


def print_domains(domains: Mapping[str, Mapping[str, Any]]) -> None:
    """A row for each domain."""
    keys = list(next(iter(domains.values()), {}))
    rows = [
        (name, *("–" if each[key] is None else f"{each[key]:.4g}" for key in keys))
        for name, each in domains.items()
    ]
    print_table(["domain", *(f">{key}" for key in keys)], rows)


def print_trial_domains(trial: TrialReport) -> None:
    """What the model of a trial loses on each domain, where there are several."""
    if len(trial.domains) < 2:
        return
    if all(domain.cosine is not None for domain in trial.domains.values()):
        rows = [
            (name, _number(domain.cosine, form=".4f")) for name, domain in trial.domains.items()
        ]
        print_table(["domain" if trial.output_cosine is None else "output", ">cosine"], rows)
        return
    print_table(
        ["domain", ">Δppl, %", ">standard error", ">KL, nats"],
        [
            (name, _number(d.dppl, 100), _number(d.dppl_error, 100), _number(d.kl))
            for name, d in trial.domains.items()
        ],
    )


def _number(value: float | None, unit: float = 1, form: str = ".3g") -> str:
    return "–" if value is None else f"{unit * value:{form}}"
