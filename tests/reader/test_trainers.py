"""The reader under accelerate and the transformers Trainer, with a tiny model."""

import json

import pytest
import torch
import transformers
from torch.utils.data import DataLoader

from packing_udfs.adapters import for_sdpa, trainer_callback
from packing_udfs.reader import PackedDataset
from packing_udfs.stream.resume import StateError
from tests.reader.conftest import IMAGE_ID, packs_of, rewrite_info, write_dataset

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """32 packs: 8 steps of 4."""
    return write_dataset(tmp_path_factory.mktemp("trainers"), [[4] * 4, [4] * 4])


def open_packed(folder, **options) -> PackedDataset:
    return PackedDataset(str(folder), global_batch_size=4, micro_batch_size=2, decode=None, **options)


def tiny_model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=IMAGE_ID + 1)
    )


class PackedTrainer(transformers.Trainer):
    def get_train_dataloader(self):
        seen = []

        def collate(batch: dict) -> dict:
            seen.append(packs_of(batch))
            return for_sdpa(batch)

        self.seen = seen
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=collate)


def train(folder, output, resume=None, **options):
    """(losses by step, packs of each micro-batch) of two epochs."""
    dataset = open_packed(folder)
    arguments = transformers.TrainingArguments(
        str(output),
        num_train_epochs=2,
        gradient_accumulation_steps=dataset.micro_batches_per_step,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=5,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=True,
        **options,
    )
    trainer = PackedTrainer(tiny_model(), arguments, train_dataset=dataset, callbacks=[trainer_callback(dataset)])
    trainer.train(resume_from_checkpoint=resume)
    return {log["step"]: log["loss"] for log in trainer.state.log_history if "loss" in log}, trainer.seen


def test_the_trainer_goes_on_as_if_it_had_not_been_interrupted(folder, tmp_path):
    losses, seen = train(folder, tmp_path)
    assert list(losses) == list(range(1, 17))
    epochs = [open_packed(folder), open_packed(folder)]
    epochs[1].set_epoch(1)
    assert seen == [packs_of(batch) for dataset in epochs for batch in dataset]
    for step in (5, 10):  # inside the first epoch, and inside the second
        checkpoint = tmp_path / f"checkpoint-{step}"
        state = json.loads((checkpoint / "reader.json").read_text())
        assert (state["epoch"], state["step"]) == divmod(step, 8)
        resumed, seen_again = train(folder, tmp_path, str(checkpoint))
        assert resumed == losses
        assert seen_again == seen[2 * step :], "nothing is read to be skipped"


def test_the_trainer_refuses_a_checkpoint_of_other_data(folder, tmp_path):
    train(folder, tmp_path, max_steps=5)
    other = write_dataset(tmp_path / "other", [[4] * 4, [4] * 4])
    rewrite_info(other, {"note": "another run"})
    with pytest.raises(StateError, match="fingerprint"):
        train(other, tmp_path, str(tmp_path / "checkpoint-5"))
    moved = str((tmp_path / "checkpoint-5").rename(tmp_path / "elsewhere"))
    with pytest.raises(StateError, match="fingerprint"):  # Trainer tells a callback what its arguments say
        train(other, tmp_path / "new", moved, resume_from_checkpoint=moved)


def accelerated(folder, num_steps: int, state: dict | None = None) -> tuple[list[float], dict]:
    """A loop by accelerate's book, but for the loader, which it is not given; `state` is a checkpoint's."""
    accelerator = accelerate.Accelerator(cpu=True)
    dataset, model = open_packed(folder), tiny_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if state:
        dataset.load_state_dict(state["reader"])
        model.load_state_dict(state["model"])
    losses = []
    for i, batch in enumerate(DataLoader(dataset, batch_size=None)):
        inputs = accelerate.utils.send_to_device(for_sdpa(batch), accelerator.device)
        loss = model(**inputs).loss
        accelerator.backward(loss)
        losses.append(loss.item())
        if (i + 1) % dataset.micro_batches_per_step == 0:
            optimizer.step()
            optimizer.zero_grad()
            if len(losses) == num_steps * dataset.micro_batches_per_step:
                break
    return losses, {"reader": batch["state"], "model": {k: v.clone() for k, v in model.state_dict().items()}}


def test_a_loop_with_accelerate_resumes(folder):
    expected, _ = accelerated(folder, 8)
    assert len(expected) == 16
    first, state = accelerated(folder, 3)
    rest, _ = accelerated(folder, 5, state)
    assert first + rest == expected
