"""How evenly the ranks of a step are loaded, in the reader's order."""

import numpy as np
import pyarrow as pa

from packing_udfs.order import manifest_order
from packing_udfs.walk import offsets

__all__ = ["step_cv", "straggler"]


def straggler(
    manifest: pa.Table,
    world_size: int,
    *,
    global_batch_size: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    balance: bool = True,
    cost: str = "vision_cost",
) -> float:
    """Mean over steps of (the largest vision cost of a rank / the mean over ranks), in the reader's order.

    1.0 is perfect; all ranks wait for the largest, so 1.1 loses a tenth of the vision encoder's time. manifest:
    contract.MANIFEST_SCHEMA; cost: its column, "vision_cost" or "attention_cost". global_batch_size: world_size by
    default, one pack a rank. A step without images counts as 1.0; so do no steps at all. Raises ValueError if
    world_size doesn't divide global_batch_size.
    """
    batch = global_batch_size or world_size
    if world_size < 1 or batch % world_size:
        raise ValueError(f"global_batch_size={batch}: must be a multiple of world_size={world_size}")
    costs = _step_costs(manifest, batch, seed, epoch, balance, cost)
    if not len(costs):
        return 1.0
    of_rank = costs.reshape(len(costs), world_size, -1).sum(axis=2)
    means = of_rank.mean(axis=1)
    return float(np.where(means > 0, of_rank.max(axis=1) / np.where(means > 0, means, 1), 1).mean())


def step_cv(
    manifest: pa.Table, global_batch_size: int, *, seed: int = 0, epoch: int = 0, balance: bool = True
) -> float:
    """Standard deviation over mean of the steps' mean vision cost, in the reader's order.

    The price of balance: packs of one step are alike, so steps differ. No steps or no images: 0.0.
    """
    means = _step_costs(manifest, global_batch_size, seed, epoch, balance).mean(axis=1)
    return float(means.std() / means.mean()) if len(means) and means.mean() > 0 else 0.0


def _step_costs(
    manifest: pa.Table, global_batch_size: int, seed: int, epoch: int, balance: bool, cost: str = "vision_cost"
) -> np.ndarray:
    """float64 [num_steps, B]: the cost of each lane's pack."""
    order = manifest_order(manifest, global_batch_size=global_batch_size, seed=seed, epoch=epoch, balance=balance)
    flat = manifest[cost].combine_chunks().flatten().to_numpy()
    starts = offsets(manifest["num_rows"].to_numpy())
    blocks = [flat[starts[groups] + rows] for groups, rows, _ in order.blocks()]
    return np.concatenate([np.empty((0, global_batch_size)), *blocks])
