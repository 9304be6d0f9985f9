"""A technique that is to be used, with its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tamiz.api.site import Site
from tamiz.api.technique import Claim, Technique, TechniqueConfig
from tamiz.files.errors import TamizError, did_you_mean


@dataclass(frozen=True)
class Choice:
    """A technique with its configuration, to be used at a site.

    Attributes:
        technique: The declaration.
        config: Its configuration.
        requested: True if the user named the technique, False if it is on by default. Where
            conflicts are dropped, requested techniques win over defaults, then the alphabetically
            first wins.
        named: True if a policy names the site, which `Technique.takes` then does not leave out.
    """

    technique: Technique
    config: TechniqueConfig
    requested: bool = True
    named: bool = False

    @classmethod
    def of(
        cls, technique: Technique, fields: Mapping[str, Any], *, requested: bool = True
    ) -> Choice:
        """Makes a choice from fields of the technique's configuration; others have their defaults.

        Raises:
            TamizError: An unknown field, or a value outside of its range.
        """
        try:
            return cls(technique, technique.config.model_validate(dict(fields)), requested)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            if first["type"] == "extra_forbidden":
                close = did_you_mean(name, technique.config.model_fields)
                raise TamizError(f"{technique.name}: unknown setting {name!r}{close}") from error
            expected = first["msg"].removeprefix("Value error, ")
            if name not in technique.config.model_fields:
                raise TamizError(f"{technique.name}: {expected}") from error
            expected = expected.replace("Input should be", "expected")
            raise TamizError(f"{technique.flag(name)}={first['input']}: {expected}") from error

    def with_fields(self, fields: Mapping[str, Any]) -> Choice:
        """The choice with other values of some fields; raises as `of`."""
        given = {**self.config.model_dump(), **fields}
        return replace(self, config=Choice.of(self.technique, given).config)

    def acts_at(self, site: Site) -> bool:
        """Whether the technique can act at `site`, and its configuration or a policy takes it."""
        technique = self.technique
        taken = self.named or technique.takes is None or technique.takes(site, self.config)
        return technique.fits(site) and taken

    def block(self, claim: Claim) -> int | None:
        """The block size of one of the technique's claims."""
        if isinstance(claim.block, str):
            value = getattr(self.config, claim.block)
            return None if value is None else int(value)
        return claim.block


def by_any_name(techniques: Mapping[str, Technique]) -> dict[str, Technique]:
    """Techniques also by the names of earlier versions, which old files hold."""
    former = {old: one for one in techniques.values() for old in one.former}
    return former | dict(techniques)


def step_rows(choices: Iterable[Choice]) -> int | None:
    """Tokens of the steps that show what choices lose; None where prompts do.

    The most in which all techniques act that act on single-token steps only.
    """
    only = [choice for choice in choices if choice.technique.decode_only]
    rows = [1 if c.technique.step_rows is None else c.technique.step_rows(c.config) for c in only]
    return min(rows, default=None)


def built_step_rows(
    known: Mapping[str, Technique], built: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """`step_rows` of a built bundle.

    Args:
        known: The installed techniques by name.
        built: Version and configuration of the bundle's techniques by name, as its manifest has
            them. One that is not installed, or takes other settings, counts as acting on steps of
            one token.
    """
    known = by_any_name(known)
    try:
        choices = [Choice.of(known[name], about["config"]) for name, about in built.items()]
    except (KeyError, TamizError):
        return 1
    return step_rows(choices)
