"""What may be appended to or replaced in a published dataset."""

from collections.abc import Sequence

from jobs.output.interface import Head, OutputError
from jobs.output.open import Output
from jobs.shards.plan import VALIDATION, splits_of
from packing_udfs import contract
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.manifest import Manifest
from packing_udfs.published.shape import ManifestInfo, RunOfSplit, require_manifest

__all__ = ["is_appended", "read_appended", "replaced_splits"]


def read_appended(
    config: Config, head: Head, output: Output, processor: ProcessorFiles, vision_unit: str
) -> dict[str, Manifest]:
    """The manifests that an append adds to, by split; none in a rewrite.

    Raises OutputError for packs of another kind, a damaged manifest, or files other than those it names.
    """
    if config.output.mode != "append":
        return {}
    there = dict(head.manifests)
    before = {split: _read(split, head, output) for split in splits_of(config) if split in there}
    for split, found in before.items():
        info = ManifestInfo.of(found)
        _check_same_split(config, split, info.runs)
        _check_same_kind(config, info, processor, vision_unit)
        _check_files(head, split, set(found.row_groups["file"].to_pylist()))
    return before


def _read(split: str, head: Head, output: Output) -> Manifest:
    """The manifest of a split that is appended to. Raises OutputError for a damaged one."""
    path = contract.MANIFEST_PARQUET.format(split=split)
    try:
        if head.commit is None or path not in head.paths:
            raise contract.ContractError(f"{path} is not there")
        found = output.read_manifest(head.commit, split)
        require_manifest(found, split)
    except (contract.ContractError, FileNotFoundError) as error:
        raise OutputError(f"output.mode: cannot append to {split}: {error}; repair it or overwrite") from error
    return found


def _check_same_kind(config: Config, info: ManifestInfo, processor: ProcessorFiles, vision_unit: str) -> None:
    """Refuse to mix packs of different lengths, costs or processors."""
    facts = {"seq_len": (info.seq_len, config.pack.seq_len), "vision_unit": (info.vision_unit, vision_unit)}
    for name, (before, ours) in facts.items():
        if before != ours:
            raise OutputError(
                f"output.mode: cannot append to {info.split}: its {name} is {before}, not {ours}; overwrite"
            )
    if info.processor.fingerprint != processor.fingerprint:
        raise OutputError(
            f"output.mode: cannot append to {info.split}: it was packed with {info.processor.name} of another content; "
            "overwrite"
        )


def _check_files(head: Head, split: str, named: set[str]) -> None:
    """Refuse a split whose data files are not those that its manifest names."""
    data = {path for path in head.files_of(split) if path.startswith("data/")}
    for odd in sorted(data ^ named):
        why = "is in its manifest or in its folder and not in both; repair it or overwrite"
        if odd in head.left:
            why = "was replaced by a run whose pull request was merged before it was done; overwrite"
        raise OutputError(f"output.mode: cannot append to {split}: {odd} {why}")


def _check_same_split(config: Config, split: str, runs: Sequence[RunOfSplit]) -> None:
    """Refuse to draw the validation split in another way than before: a sample could be in both splits."""
    ours = config.shards
    for run in runs:
        for name in ("validation_fraction", "seed") if ours.validation_fraction else ("validation_fraction",):
            before = getattr(run.config.shards, name)
            if before != getattr(ours, name):
                raise OutputError(
                    f"shards.{name}: {getattr(ours, name)} cannot be appended to {split}, which was packed with "
                    f"{before}: a sample could be in the validation split and in {config.output.split} too; use "
                    f"{before} or overwrite"
                )


def is_appended(config: Config, head: Head, run: str) -> bool:
    """Whether each of its splits ends with an append of this very run: a second one would add every sample twice.

    Raises OutputError when others were appended after it: the run could not tell its own samples from theirs.
    """
    runs = [head.runs(split) for split in splits_of(config)]
    if config.output.mode != "append" or not all(run in of_split for of_split in runs):
        return False
    if all(of_split[-1] == run for of_split in runs):
        return True
    raise OutputError(
        f"output.mode: this very run ({run[:12]}) was appended to {config.output.split} before, and others behind it: "
        "its samples are there; append other sources, or overwrite"
    )


def replaced_splits(config: Config, head: Head) -> list[str]:
    """The splits that a run replaces: those it writes, and the validation split of the run that it replaces.

    Raises OutputError when a split that stays would lose samples: if `train` was packed with a validation split,
    packing `b` with one too would drop the validation samples of `train`.
    """
    if config.output.mode == "append":
        return []
    runs = {split: set(head.runs(split)) for split, _ in head.manifests}
    mine, of_validation = runs.get(config.output.split, set()), runs.get(VALIDATION, set())
    replaced = {*splits_of(config), *([VALIDATION] if mine & of_validation else [])}
    for split in sorted(replaced & runs.keys()):
        for other in sorted(runs.keys() - replaced):
            if runs[split] & runs[other]:
                zero = "" if mine & of_validation else "shards.validation_fraction=0 or "
                with_validation = f"shards.validation_fraction={config.shards.validation_fraction}"
                raise OutputError(
                    f"output.split: {config.output.split} with {with_validation} would replace the split {split}, "
                    f"which one run packed together with {other}: samples of {other} would be gone; use {zero}"
                    "another output.repo"
                )
    return sorted(replaced)
