"""The tables of losses and of what is gained for them, for the page of results."""

from __future__ import annotations

from result_tables import Stored, number, origin, origins, shown, table

_FLOAT32 = """\
WikiText-2 test, 8 windows of 1,024 tokens (`python -m benchmarks perplexity`). llama.cpp rounds the
inputs of products with quantised weights to 8 bits. "llama.cpp, float32" reads the same weights
written out in float32, and rounds nothing."""
_BUDGETS = """\
The first bundle is in the source format, the others were built within limits. Δppl, its standard
error and KL are measured on windows of a text that no choice was made on (`python -m benchmarks
budgets`). The loss that the build itself measured is in the column "Δppl of the build"."""
_GREEDY = """\
An answer is equal when all of its tokens are. The margin is the logit of tamiz' own token minus the
logit of the other token, where the answers part."""
_QUANTISERS = """\
All are quantisations of one reference, the dequantised GGUF, and run in tamiz. llama.cpp's have the
imatrix of the calibration that tamiz reads. "tamiz choice" has a format for each site, from
`tamiz frontier` or `tamiz build`. A choice keeps many tensors of the GGUF as they are, and
llama.cpp quantises all of them a second time: this favours tamiz, most at large sizes.
Windows are of a text that nothing was chosen on (`python -m benchmarks quantisers`)."""
_UNSEEN = """\
Builds within limits of Δppl, on six domains that do not ship with tamiz (`python -m benchmarks
unseen`): Δppl in % with its standard error, and KL in nats. A cell holds where Δppl is within the
limit and two standard errors, and KL within ln(1 + limit). A row with a name is a bundle without a
limit: `serve` has inputs of 8 bits and the weights of its source."""
_ENCODERS = """\
Every model is compared with float32. The cosine is that of embeddings, its mean and its 5 %
quantile over texts. A text agrees where its nearest other text is the same. Speed is that of a
batch, times float32, with the quartiles over rounds. A last pair of columns has paragraphs of
different lengths, 32 in a run, with tokenising. "tamiz chosen" has a format for each site, within a
limit of cosine on the calibration's text (`python -m benchmarks encoders`)."""
_RETRIEVAL = """\
Queries are titles of articles and of their sections; the body below the titles is the relevant
passage. Pairs of sentences are ordered by how near they stand in the text; ρ compares this order
with the cosines. Differences to the first row are 5 % to 95 % of samples of the queries or pairs
(`python -m benchmarks retrieval`)."""


def budgets_section(all_stored: list[Stored]) -> list[str]:
    """Builds within limits against the model in its source format."""
    head = ["bundle", "size, MB", "Δppl, %", "± error, %", "Δppl of the build, %"]
    head += ["KL, nats", "windows", "decode, tok/s", "decode, times source format"]
    keys = ["mb", "dppl", "dppl_error", "own_dppl", "kl_mean", "windows", "decode_tok_s", "speed"]
    parts = ["## Builds within limits", _BUDGETS]
    for stored in all_stored:
        rows = []
        for name, found in stored.record["results"]["bundles"].items():
            percent = {key: 100 * found[key] for key in keys[1:4] if key in found}
            values = [(found | percent).get(key) for key in keys]
            cells = ("" if value is None else number(value) for value in values)
            rows.append([shown(name), *cells])
        parts += [f"### {stored.title}: limits", table(head, rows), origin(stored)]
    return parts


def quantisers_section(all_stored: list[Stored]) -> list[str]:
    """Quantisers at their bytes, the smallest first."""
    parts = ["## Quantisers at their bytes", _QUANTISERS]
    for stored in all_stored:
        found = sorted(stored.record["results"].items(), key=lambda item: item[1]["mb"])
        rows = []
        for name, row in found:
            percent = [f"{100 * row['dppl']:.2f}", f"{100 * row['top1']:.1f}"]
            rows.append([name, number(row["mb"]), f"{row['kl']:.4f}", *percent])
        head = ["weights", "size, MB", "KL, nats", "Δppl, %", "same likeliest token, %"]
        parts += [f"### {stored.title}: quantisers", table(head, rows), origin(stored)]
    return parts


def encoders_section(all_stored: list[Stored]) -> list[str]:
    """Encoders in fewer bits, the smallest first."""
    head = ["model", "size, MB", "cosine", "5 %", "texts that agree, %", "ms", "speed", "range"]
    parts = ["## Encoders in fewer bits", _ENCODERS]
    for stored in all_stored:
        settings = stored.record["settings"]
        rows = []
        for name, row in sorted(stored.record["results"].items(), key=lambda item: item[1]["mb"]):
            cosines = [f"{row['cos_mean']:.5f}", f"{row['cos_p05']:.5f}"]
            agree = f"{100 * row['same_nearest']:.1f}"
            speeds = [number(row["ms"]), number(row["speed"])]
            spread = " to ".join(map(number, row["speed_range"]))
            mixed = [number(row[key]) for key in ("mixed_ms", "mixed_speed") if key in row]
            rows.append([name, number(row["mb"]), *cosines, agree, *speeds, spread, *mixed])
        mixed_head = [f"{settings['mixed']} texts, ms", "speed"] if settings.get("mixed") else []
        size = f"{settings['batch']} × {settings['length']} tokens"
        note = f"{settings['texts']} texts; a batch has {size}. {origin(stored)}"
        parts += [f"### {stored.title}: encoder", table(head + mixed_head, rows), note]
    return parts


def retrieval_section(all_stored: list[Stored]) -> list[str]:
    """Search by titles and similarity of sentences; a bundle a row, the reference first."""
    head = ["model", "size, MB", "NDCG@10", "difference", "Spearman's ρ", "difference"]
    parts = ["## Encoders that search", _RETRIEVAL]
    for stored in all_stored:
        settings, rows = stored.record["settings"], []
        for name, row in stored.record["results"].items():
            cells = [shown(name), number(row["mb"])]
            for score in ("ndcg_10", "spearman"):
                low, high = row[f"{score}_difference"]
                cells += [f"{row[score]:.4f}", f"{low:+.4f} to {high:+.4f}"]
            rows.append(cells)
        counts = f"{settings['queries']} queries, {settings['pairs']} pairs of sentences"
        note = f"{counts}; texts have at most {settings['length']} tokens. {origin(stored)}"
        parts += [f"### {stored.title}: search", table(head, rows), note]
    return parts


def perplexity_section(all_stored: list[Stored]) -> list[str]:
    """The same tokens scored by tamiz and by llama.cpp; a model a row."""
    peers = sorted({peer for stored in all_stored for peer in stored.record["results"]["ppl"]})
    peers.remove("tamiz")
    rows = []
    for stored in all_stored:
        ppl, against = (stored.record["results"][key] for key in ("ppl", "tamiz_against"))
        cells = [f"{ppl['tamiz']:.3f}"]
        for peer in peers:
            if peer in ppl:
                cells += [f"{ppl[peer]:.3f}", f"{100 * against[peer]['relative']:+.4f}"]
            else:
                cells += ["", ""]
        rows.append([stored.title, *cells])
    head = ["model", "tamiz", *(cell for peer in peers for cell in (peer, f"tamiz : {peer}, %"))]
    return ["## Perplexity on the same tokens", _FLOAT32, table(head, rows), *origins(all_stored)]


def greedy_section(all_stored: list[Stored]) -> list[str]:
    """Greedy answers of tamiz and llama.cpp to the same prompts."""
    rows = []
    for stored in all_stored:
        for peer, found in stored.record["results"].items():
            margins = [found["median_margin"], found["largest_margin"]]
            told = ["" if margin is None else number(margin) for margin in margins]
            rows.append([stored.title, peer, str(found["prompts"]), str(found["equal"]), *told])
    head = ["model", "engine", "prompts", "equal answers", "median margin", "largest margin"]
    title = "## Greedy answers to the same prompts"
    return [title, _GREEDY, table(head, rows), *origins(all_stored)]


def unseen_section(all_stored: list[Stored]) -> list[str]:
    """Losses of builds within limits on domains that do not ship with tamiz."""
    parts = ["## Limits on unseen text", _UNSEEN]
    for stored in all_stored:
        bundles = stored.record["results"]["bundles"]
        domains = list(next(iter(bundles.values()))["domains"])
        rows = []
        for name, found in bundles.items():
            limit, own = found["max_dppl"], found.get("own_dppl")
            cells = [name if limit is None else f"{100 * limit:.0f}"]
            cells.append(f"{found['mb_before']} to {found['mb']}")
            cells.append("" if own is None else f"{100 * own:.2f}")
            for loss in found["domains"].values():
                told = (
                    f"{100 * loss['dppl']:.2f} ± {100 * loss['dppl_error']:.2f}, {loss['kl']:.4f}"
                )
                over = not (loss.get("dppl_holds", True) and loss.get("kl_holds", True))
                cells.append(f"{told} (over)" if over else told)
            rows.append(cells)
        head = ["limit, %", "size, MB", "Δppl of the build, %", *domains]
        parts += [f"### {stored.title}: unseen text", table(head, rows), origin(stored)]
    return parts
