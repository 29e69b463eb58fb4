"""What may be appended to or replaced in a published dataset."""

from collections.abc import Sequence

from jobs.output.interface import Head, Output, OutputError, at
from jobs.shards.plan import VALIDATION, splits_of
from packing_udfs import contract, manifest
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles


def read_appended(
    config: Config, head: Head, output: Output, processor: ProcessorFiles, vision_unit: str
) -> dict[str, manifest.Manifest]:
    """The manifests that an append adds to, by split; none in a rewrite.

    Raises OutputError when the packs there are of another kind, or the files are not those that the manifest names.
    """
    splits = splits_of(config) if config.output.mode == "append" else []
    before = {s: _read(s, head, output) for s in splits if s in dict(head.manifests)}
    for split, found in before.items():
        _check_same_split(config, split, found.info["runs"])
        for name, ours in (("seq_len", config.pack.seq_len), ("vision_unit", vision_unit)):
            if at(found.info, name) != ours:
                raise OutputError(
                    f"output.mode: cannot append to {split}: its {name} is {at(found.info, name)}, not {ours}; "
                    "overwrite"
                )
        if at(found.info, "processor", "fingerprint") != processor.fingerprint:
            raise OutputError(
                f"output.mode: cannot append to {split}: it was packed with {at(found.info, 'processor', 'name')} of "
                "another content; overwrite"
            )
        data = {path for path in head.files_of(split) if path.startswith("data/")}
        odd = sorted(data ^ set(found.row_groups["file"].to_pylist()))
        if odd:
            why = "is in its manifest or in its folder and not in both; repair it or overwrite"
            if odd[0] in head.left:
                why = "was replaced by a run whose pull request was merged before it was done; overwrite"
            raise OutputError(f"output.mode: cannot append to {split}: {odd[0]} {why}")
    return before


def _read(split: str, head: Head, output: Output) -> manifest.Manifest:
    """The manifest of a split that is appended to. Raises OutputError for one that is not whole."""
    path = contract.MANIFEST_PARQUET.format(split=split)
    try:
        if path not in head.paths:
            raise contract.ContractError(f"{path} is not there")
        found = output.read_manifest(head.commit, split)
        lacks = [name for name in contract.MANIFEST_SCHEMA.names if name not in found.row_groups.column_names]
        lacks += [name for name in ("num_shards", "sums") if name not in found.info]
        if lacks:
            raise contract.ContractError(f"its manifest has no {lacks[0]}")
    except (contract.ContractError, FileNotFoundError) as error:
        raise OutputError(f"output.mode: cannot append to {split}: {error}; repair it or overwrite") from error
    return found


def _check_same_split(config: Config, split: str, runs: Sequence[dict]) -> None:
    """Refuse to draw the validation split otherwise than before: a sample could come to be in both splits."""
    for run in runs:
        ours = config.shards
        for name in ("validation_fraction", "seed") if ours.validation_fraction else ("validation_fraction",):
            drawn = at(run, "config", "shards", name)
            if drawn != getattr(ours, name):
                raise OutputError(
                    f"shards.{name}: {getattr(ours, name)} cannot be appended to {split}, which was packed with "
                    f"{drawn}: a sample could be in the validation split and in {config.output.split} too; use "
                    f"{drawn} or overwrite"
                )


def is_appended(config: Config, head: Head, run: str) -> bool:
    """Whether each of its splits ends with an append of this very run: a second would add every sample twice.

    Raises OutputError where others were appended behind it: what a run says of itself would be of those.
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
    """Splits that a run replaces: those it writes, and the validation split that the replaced run made beside its own.

    Raises OutputError when that takes samples from a split that stays: where `train` was packed with a validation
    split, packing `b` with one too would leave the samples that were set aside of `train` in neither.
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
