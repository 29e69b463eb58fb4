"""A tiny vision-language model trained from a packed dataset, as a process that can be killed at any step.

    python -m jobs.demo.train user/demo-packed OUTPUT [--steps N] [--pause-after STEP]

After each step it writes OUTPUT/checkpoint: model, optimizer, the reader's state and the losses so far. A restarted
process resumes from it. The model has the demo processor's architecture and few weights; a block mask keeps the samples
of a pack apart. With --pause-after it stops after that step and waits to be killed.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import transformers
from torch.utils.data import DataLoader

from jobs.command import new_parser
from jobs.demo.start import PROCESSOR, ROOT
from packing_udfs.collate import block_mask
from packing_udfs.reader import PackedDataset

__all__ = ["main", "run", "tiny_vlm", "train", "train_step"]

GLOBAL_BATCH_SIZE, LEARNING_RATE = 2, 1e-2


def tiny_vlm(processor) -> transformers.PreTrainedModel:
    """An Idefics3 of two layers and one for vision: a tile of 512 pixels is 64 patches of 64, a token each."""
    config = transformers.Idefics3Config(
        text_config={
            "model_type": "llama",
            "vocab_size": len(processor.tokenizer),
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "pad_token_id": 0,
        },
        vision_config={
            "image_size": 512,
            "patch_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        scale_factor=1,
        image_token_id=processor.image_token_id,
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def train_step(model, optimizer, batch: dict) -> float:
    """One step; the loss per trained token before it."""
    optimizer.zero_grad()
    out = model(
        input_ids=batch["input_ids"],
        attention_mask=block_mask(batch["segment_ids"]),
        position_ids=batch["position_ids"],
        labels=batch["labels"],
        **{name: batch[name] for name in batch["image_inputs"]},
    )
    out.loss.backward()
    optimizer.step()
    return out.loss.item()


def train(
    dataset: PackedDataset, processor, output: Path, num_steps: int, pause_after: int | None = None
) -> list[float]:
    """Train up to `num_steps`, from OUTPUT/checkpoint where there is one; the losses of all steps."""
    torch.manual_seed(0)
    model = tiny_vlm(processor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    checkpoint = output / "checkpoint"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["reader"])
        losses = saved["losses"]
    while len(losses) < num_steps:
        for batch in DataLoader(dataset, batch_size=None):
            losses.append(train_step(model, optimizer, batch))
            _save(checkpoint, model, optimizer, batch["state"], losses)
            while len(losses) == pause_after:
                time.sleep(0.2)
            if len(losses) == num_steps:
                break
        else:
            dataset.set_epoch(batch["state"]["epoch"] + 1)
    return losses


def _save(checkpoint: Path, model, optimizer, state: dict, losses: list[float]) -> None:
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "reader": state, "losses": losses}
    draft = checkpoint.with_suffix(".draft")
    torch.save(parts, draft)
    draft.replace(checkpoint)


def run(repo: str, output: Path, num_steps: int, kill_after: int | None = None) -> list[float]:
    """Train in a process of its own, from its checkpoint where there is one; the losses of all steps.

    kill_after: kill the process after this step.
    """
    command = [sys.executable, "-m", "jobs.demo.train", repo, str(output), "--steps", str(num_steps)]
    if kill_after is not None:
        command += ["--pause-after", str(kill_after)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if kill_after is not None:
        while process.poll() is None and len(_losses(output)) < kill_after:
            time.sleep(0.2)
        process.kill()
    if process.wait() != (0 if kill_after is None else -signal.SIGKILL):
        raise RuntimeError(f"training ended with {process.returncode}")
    return _losses(output)


def _losses(output: Path) -> list[float]:
    """The losses in a folder's checkpoint; none before there is one."""
    checkpoint = output / "checkpoint"
    return torch.load(checkpoint)["losses"] if checkpoint.exists() else []


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("demo.train", "Train a tiny model from packs.")
    parser.add_argument("dataset", help="owner/name on the Hub, or a folder")
    parser.add_argument("output", type=Path, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=10, help="steps in all (%(default)s)")
    parser.add_argument("--pause-after", type=int, metavar="STEP", help="wait after this step, to be killed")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order: a resumed run is equal to the last bit
    processor = transformers.AutoProcessor.from_pretrained(PROCESSOR)
    dataset = PackedDataset(args.dataset, global_batch_size=GLOBAL_BATCH_SIZE, processor=PROCESSOR, blank=True)
    losses = train(dataset, processor, args.output, args.steps, args.pause_after)
    print("\n".join(f"step {step:>3}  loss {loss:.4f}" for step, loss in enumerate(losses, 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
