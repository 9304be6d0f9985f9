"""Sites without a graph."""

from tamiz.api.site import Site, SiteKind


def linear(
    n: int,
    k: int,
    kind: SiteKind = SiteKind.LINEAR,
    tensor: str | None = "ffn_up",
    transposed: bool = False,
) -> Site:
    """The site ``linear.w`` of a weight with n outputs and k inputs."""
    return Site(
        "linear.w", kind, "node", tensor=tensor, weight="w",
        in_features=k, out_features=n, transposed=transposed,
    )  # fmt: skip
