"""``tamiz schema``."""

from __future__ import annotations

import click

from tamiz.cli._output import print_json
from tamiz.cli._techniques import find_technique, techniques


@click.command("schema")
@click.argument("technique", metavar="TECHNIQUE|policy")
@click.pass_context
def command(ctx: click.Context, technique: str) -> None:
    """Print the JSON Schema of a technique or a policy.

    Editors complete and check a policy that names the printed file under "$schema".
    """
    if technique == "policy":
        from tamiz.planning.policy_schema import policy_model

        print_json(policy_model(techniques(ctx)).model_json_schema())
        return
    print_json(find_technique(ctx, technique).config.model_json_schema())
