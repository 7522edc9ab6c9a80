from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.inputs import InputStage, Pipeline, make_stage

VOCABULARY = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "share": 3, "the": 4, "device": 5, "[PAD]": 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(pad_id=6, pad_token="[PAD]")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def inputs(length: int | None, *names: str, dtype: DType = DType.I64) -> list[BufferParam]:
    return [BufferParam(name, (dtype,), (None, length)) for name in names or ("input_ids", "attention_mask")]


def tokens(stage: InputStage, text: str) -> list[list[list[int]]]:
    return [array.tolist() for array in stage.run([np.frombuffer(text.encode(), np.uint8)])]


def test_a_text_becomes_as_many_tokens_as_it_has(folder: Path) -> None:
    stage = make_stage("tokenise,file=tokenizer.json", inputs(None), folder)
    assert tokens(stage, "share the device") == [[[1, 3, 4, 5, 2]], [[1, 1, 1, 1, 1]]]
    assert tokens(stage, "share it") == [[[1, 3, 0, 2]], [[1, 1, 1, 1]]]


def test_a_model_of_fixed_length_gets_padding(folder: Path) -> None:
    stage = make_stage("tokenise,file=tokenizer.json", inputs(6, dtype=DType.I32), folder)
    assert tokens(stage, "share it") == [[[1, 3, 0, 2, 6, 6]], [[1, 1, 1, 1, 0, 0]]]
    given = make_stage("tokenise,file=tokenizer.json,pad_id=0", inputs(6), folder)
    assert tokens(given, "share it")[0] == [[1, 3, 0, 2, 0, 0]]


@pytest.mark.parametrize(("length", "options"), [(4, ""), (None, ",max_length=4")])
def test_a_long_text_is_cut(folder: Path, length: int | None, options: str) -> None:
    stage = make_stage(f"tokenise,file=tokenizer.json{options}", inputs(length), folder)
    assert tokens(stage, "share the device the device")[0] == [[1, 3, 4, 2]]


def test_inputs_that_are_no_tokens_stay_with_the_request(folder: Path) -> None:
    targets = [*inputs(None, "input_ids", "token_type_ids"), BufferParam("x", (DType.F32,), (None,))]
    stage = make_stage("tokenise,file=tokenizer.json", targets, folder)
    assert [param.name for param in stage.outputs] == ["input_ids", "token_type_ids"]


def test_an_input_of_another_name_is_named(folder: Path) -> None:
    stage = make_stage("tokenise,file=tokenizer.json,into=b", inputs(None, "a", "b"), folder)
    assert [param.name for param in stage.outputs] == ["b"]


def test_a_text_that_is_not_utf8_is_refused(folder: Path) -> None:
    stage = make_stage("tokenise,file=tokenizer.json", inputs(None), folder)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        stage.run([np.frombuffer(b"\xff\xfe", np.uint8)])


def test_a_pipeline_makes_batches_of_texts(folder: Path) -> None:
    stage = make_stage("tokenise,file=tokenizer.json", inputs(4, "input_ids"), folder)
    with Pipeline(stage, [b"share", b"the device"], batch=2) as batches:
        assert [ids.tolist() for (ids,) in batches] == [[[[1, 3, 2, 6]], [[1, 4, 5, 2]]]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokenise", "which tokenizer"),
        ("tokenise,file=none.json", r"none\.json is no tokenizer"),
        ("tokenise,file=broken.json", r"broken\.json is no tokenizer"),
        ("tokenise,file=tokenizer.json,max_length=0", "max_length=0"),
        ("tokenise,file=tokenizer.json,max_length=9", "max_length=9: give a whole number from 1 to 8"),
        ("tokenise,file=tokenizer.json,words=1", "no option 'words'"),
    ],
)
def test_a_stage_that_cannot_be_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "broken.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=words):
        make_stage(text, inputs(8), folder)


def test_tensors_that_cannot_hold_tokens_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="none can be one"):
        make_stage("tokenise,file=tokenizer.json", inputs(None, dtype=DType.F32), folder)
    with pytest.raises(InvalidRequest, match=r"different lengths: \[4, 8\]"):
        make_stage(
            "tokenise,file=tokenizer.json", [*inputs(4, "input_ids"), *inputs(8, "attention_mask")], folder
        )
