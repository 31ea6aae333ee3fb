"""docs/conversations.md with transformers' tokenizer and model: killed and gone on with; what reaches the model."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

from tests.docs.test_jobs import DIE, LAST_RANK, TORCHRUN, finished, script_of, start, steps, strike
from torchpipe.integrations.attention import documents
from torchpipe.iter import IterableWrapper

PAGE = "conversations.md"


def test_killed_and_gone_on_with_under_other_ranks_and_workers(tmp_path: Path) -> None:
    output = finished(start([sys.executable], script_of(PAGE, tmp_path / "whole"), "20"))
    whole = steps(output)
    assert sorted(whole) == list(range(1, 21))  # more than an epoch
    assert output.endswith("over 31 conversations\n")

    script = script_of(PAGE, tmp_path / "cut")
    text = script.read_text()
    strike(script, f"step == 8 and {LAST_RANK}", DIE, "                if step % save_every == 0:\n")
    made = steps(finished(start([*TORCHRUN, "2"], script, "20"), code=1))
    script.write_text(text.replace("MultiProcessingReadingService(1)", "MultiProcessingReadingService(2)"))
    output = finished(start([sys.executable], script, "20"))
    rest = steps(output)
    assert min(rest) == 6  # its checkpoint is of step 5
    assert {**made, **rest} == whole
    assert output.endswith("over 31 conversations\n")


def test_evaluation_on_two_ranks_counts_each_conversation_once(tmp_path: Path) -> None:
    output = finished(start([*TORCHRUN, "2"], script_of(PAGE, tmp_path / "two"), "1"))
    assert output.endswith("over 31 conversations\n")


def test_labels_are_what_the_assistant_says(tmp_path: Path) -> None:
    script = script_of(PAGE, tmp_path / "labels")
    script.write_text(script.read_text().replace('if __name__ == "__main__":', "def main():") + LABELS)
    for talk, said in map(json.loads, finished(start([sys.executable], script)).splitlines()):
        answers = [turn["content"] for turn in talk if turn["role"] == "assistant"]
        assert said == "".join(f"{answer}<|end|>" for answer in answers)


LABELS = """
make_files()
tokenizer = PreTrainedTokenizerFast.from_pretrained("tokenizer")
for line in open("test.jsonl"):
    talk = json.loads(line)
    labels = [label for label in Encode("tokenizer")(talk)["labels"] if label != -100]
    print(json.dumps([talk["messages"], tokenizer.decode(labels)]))
"""


def packs_of(talks: list[list[int]], length: int) -> torch.Tensor:
    packs = list(IterableWrapper(talks).pack(length, strategy="best_fit"))
    return torch.stack([torch.stack([pack["tokens"].int(), pack["segment_ids"]]) for pack in packs]).transpose(0, 1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_sees_each_conversation_alone(attention: str) -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, attn_implementation=attention, **small)).eval()
    talks = [torch.randint(1, 50, (size,)).tolist() for size in (5, 9, 3, 12, 7, 1)]
    tokens, segments = packs_of(talks, 16).long()
    with torch.no_grad():
        logits = model(input_ids=tokens, position_ids=documents(segments).position_ids, use_cache=False).logits
        for row, ids in enumerate(segments):
            for number in range(1, int(ids.max()) + 1):
                mine = ids == number
                alone = model(input_ids=tokens[row, mine][None], use_cache=False).logits[0]
                torch.testing.assert_close(logits[row, mine], alone)


def test_documents_are_those_of_transformers_own_collator() -> None:
    talks = [list(range(1, size + 1)) for size in (5, 9, 3, 12, 4, 16, 15)]
    tokens, segments = packs_of(talks, 16)
    rows = [ids.tolist() for ids in segments]
    cuts = [[0, *(n for n in range(1, 16) if ids[n] != ids[n - 1]), 16] for ids in rows]
    parts = [row[begin:end].tolist() for row, ends in zip(tokens, cuts) for begin, end in pairwise(ends)]
    collator: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    wanted = collator([{"input_ids": part} for part in parts])
    assert torch.equal(tokens.reshape(1, -1).long(), wanted["input_ids"])
    found = documents(segments).for_transformers()
    for name, value in found.items():
        assert torch.equal(torch.as_tensor(value).flatten(), torch.as_tensor(wanted[name]).flatten()), name
    assert found.keys() | {"input_ids", "labels"} == wanted.keys()


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_model_that_shifts_by_itself_predicts_no_other_conversation(strategy: Any) -> None:
    """The page's rule: -100 where a segment begins, for labels that nobody has shifted yet."""
    talks = [{"tokens": list(range(at, at + size))} for at, size in ((100, 5), (200, 9), (300, 23), (400, 12))]
    for pack in IterableWrapper(talks).pack(16, strategy=strategy):
        used = pack["segment_ids"] > 0
        labels = pack["tokens"].masked_fill((pack["positions"] == 0) | ~used, -100)
        for before, label in zip(pack["tokens"][:-1].tolist(), labels[1:].tolist()):
            assert label in (-100, before + 1)
