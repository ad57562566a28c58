"""The training spec: one canonical text, and one clear sentence for everything that no run can follow."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundlog.spec import SpecError, TrainingSpec, check_rounding

SPEC = TrainingSpec(
    steps=60,
    interval=5,
    program_root=bytes([1]) * 32,
    operator_count=200,
    initial_state_root=bytes([2]) * 32,
    state_count=12,
    data_root=bytes([3]) * 32,
    data_rows=1797,
    batch_size=32,
    schedule_root=bytes([4]) * 32,
    seed=2**64 - 1,
)


def test_the_canonical_text_is_on_record() -> None:
    assert SPEC.to_json() == (
        '{"batch_size":32,"chunk_size":1024,'
        f'"data_root":"0x{"03" * 32}","data_rows":1797,"initial_state_root":"0x{"02" * 32}",'
        '"interval":5,"log_guard":4,"log_version":2,"operator_count":200,'
        f'"program_root":"0x{"01" * 32}","rounding_bits":32,"rounding_policy":0,'
        f'"schedule_root":"0x{"04" * 32}","seed":18446744073709551615,"state_count":12,"steps":60}}'
    )


def test_the_fields_stand_in_the_order_of_the_solidity_struct() -> None:
    names = ", ".join(field.name for field in fields(TrainingSpec))
    assert names == (
        "steps, interval, program_root, operator_count, initial_state_root, state_count, data_root, data_rows, "
        "batch_size, schedule_root, seed, chunk_size, rounding_policy, rounding_bits, log_guard, log_version"
    )


roots = st.binary(min_size=32, max_size=32)


@given(st.integers(1, 1000), st.integers(1, 1000), roots, roots, st.integers(0, 2**64 - 1), st.integers(1, 2**40))
def test_reading_undoes_writing(
    interval: int, intervals: int, program_root: bytes, data_root: bytes, seed: int, rows: int
) -> None:
    spec = replace(
        SPEC,
        interval=interval,
        steps=interval * intervals,
        program_root=program_root,
        data_root=data_root,
        seed=seed,
        data_rows=rows,
        batch_size=min(rows, 32),
    )
    assert TrainingSpec.from_json(spec.to_json()) == spec
    assert spec.intervals == intervals


def test_white_space_and_order_do_not_change_the_run() -> None:
    text = json.dumps(dict(reversed(json.loads(SPEC.to_json()).items())), indent=3)
    spec = TrainingSpec.from_json(text.encode())
    assert spec == SPEC
    assert spec.run_id == SPEC.run_id


def test_every_field_changes_the_run_id() -> None:
    changed = {
        "steps": 120, "interval": 6, "operator_count": 201, "state_count": 13, "data_rows": 1796, "batch_size": 31,
        "seed": 0, "log_guard": 5,
    }  # fmt: skip
    for root in ("program_root", "initial_state_root", "data_root", "schedule_root"):
        changed[root] = bytes(32)
    run_ids = {replace(SPEC, **{name: value}).run_id for name, value in changed.items()}
    assert len(run_ids | {SPEC.run_id}) == len(changed) + 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps has to be at least 1"),
        ({"interval": 0}, "interval has to be at least 1"),
        ({"interval": 7}, "interval 7 has to divide steps 60"),
        ({"steps": 2**32 + 1, "interval": 1}, "steps 4294967297 has to be at most 2^32"),
        ({"operator_count": 0}, "operator_count has to be at least 1"),
        ({"operator_count": 2**32 + 1}, "operator_count 4294967297 has to be at most 2^32"),
        ({"state_count": 0}, "state_count has to be at least 1"),
        ({"data_rows": 0}, "data_rows has to be at least 1"),
        ({"data_rows": 2**40 + 1}, "data_rows 1099511627777 has to be at most 2^40"),
        ({"batch_size": 0}, "batch_size has to be at least 1"),
        ({"batch_size": 1798}, "batch_size 1798 has to be at most data_rows 1797"),
        (
            {"steps": 2**32, "interval": 1, "data_rows": 2**40, "batch_size": 2**32},
            "steps * batch_size has to be below 2^64, so that a sample's position fits 64 bits",
        ),
        ({"seed": -1}, "seed has to be an unsigned 64-bit integer"),
        ({"seed": 2**64}, "seed has to be an unsigned 64-bit integer"),
        ({"seed": True}, "seed has to be an integer"),
        ({"seed": "1"}, "seed has to be an integer"),
        ({"chunk_size": 512}, "chunk_size 512 has to be 1024"),
        ({"rounding_bits": 22}, "rounding_bits 22 is outside 23..32"),
        ({"rounding_bits": 33}, "rounding_bits 33 is outside 23..32"),
        ({"rounding_policy": 2}, "rounding_policy 2 is neither 0 (certified) nor 1 (threshold)"),
        ({"log_guard": 3}, "log_guard 3 is outside 4..255"),
        ({"log_guard": 256}, "log_guard 256 is outside 4..255"),
        ({"log_version": 1}, "log_version 1 is not supported by this version; use 2"),
        ({"log_version": 3}, "log_version 3 is not supported by this version; use 2"),
        ({"data_root": bytes(31)}, "data_root has to be a root of 32 bytes"),
        ({"data_root": "0x" + "00" * 32}, "data_root has to be a root of 32 bytes"),
    ],
)
def test_a_spec_that_no_run_can_follow_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    spec = replace(SPEC, **changes)
    for act in (spec.validate, spec.to_json):
        with pytest.raises(SpecError) as error:
            act()
        assert str(error.value) == sentence


@pytest.mark.parametrize("odd", ["threshold", 0.5, True, None])
def test_a_policy_or_a_number_of_bits_that_is_no_integer_is_refused_before_a_step_is_captured(odd: Any) -> None:
    with pytest.raises(SpecError, match=r"^rounding_policy has to be an integer$"):
        check_rounding(odd, 32)
    with pytest.raises(SpecError, match=r"^rounding_bits has to be an integer$"):
        check_rounding(0, odd)


def edited(**changes: object) -> str:
    return json.dumps(json.loads(SPEC.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the spec is not JSON"),
        ("{", "the spec is not JSON"),
        (b"\xff\xfe{", "the spec is not JSON"),
        ("[" * 8000, "the spec is not JSON"),
        ('{"steps": ' + "9" * 5000 + "}", "the spec is not JSON"),
        ("[]", "a text that is no object"),
        (" " * 20_000, "20000 bytes is longer"),
        ('{"steps": 1, "steps": 2}', "a key twice"),
        (edited(steps=60.0), "the number 60.0, but all its numbers are integers"),
        (edited(seed=float("nan")), "the number NaN"),
        (edited(referee="0x00"), "unknown key 'referee'"),
        ("{}", "lacks batch_size"),
        (edited(seed=None), "seed has to be an integer"),
        (edited(seed="7"), "seed has to be an integer"),
        (edited(data_root=7), "data_root that is not 0x and 64"),
        (edited(data_root="00" * 33), "data_root that is not 0x and 64"),
        (edited(data_root="0x" + "AB" * 32), "data_root that is not 0x and 64"),
        (edited(data_root="0x" + "zz" * 32), "data_root that is not 0x and 64"),
        (edited(data_root="0x" + " " + "00" * 31 + " "), "data_root that is not 0x and 64"),
        (edited(interval=7), "interval 7 has to divide steps 60"),
    ],
)
def test_a_hostile_text_is_refused_in_one_sentence(text: str | bytes, sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        TrainingSpec.from_json(text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
