"""How a run's shards are packed, from its configuration."""

from collections.abc import Sequence

from jobs.sources.pinned import PinnedSource
from packing_udfs.config import Config, ConfigError
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.shard.pack_shard import PackSettings

__all__ = ["check_budgets", "settings"]


def check_budgets(config: Config, processor: ProcessorFiles, sources: Sequence[PinnedSource]) -> str:
    """The unit of vision cost. Raises ConfigError for budgets that no image fits, where a source has images."""
    encoder = Encoder(processor.load(), config.pack.train_on)
    image = encoder.expand((64, 64))
    if len(image.ids) >= config.pack.seq_len and any(pinned.adapter.has_images for pinned in sources):
        raise ConfigError(
            f"pack.seq_len: {config.pack.seq_len} is too small: one small image takes {len(image.ids)} tokens with "
            f"{config.processor.path}; use more"
        )
    return encoder.family.vision_unit


def settings(config: Config, sources: Sequence[PinnedSource] = ()) -> PackSettings:
    """The settings of `pack_shard`."""
    return PackSettings(
        **config.pack.model_dump(),
        num_packs_per_row_group=config.shards.num_packs_per_row_group,
        max_file_bytes=config.shards.max_file_bytes,
        duplicates=config.shards.duplicates,
        seed=config.shards.seed,
        images=config.images,
        videos={pinned.source.name: pinned.source.video for pinned in sources if pinned.has_videos},
    )
