import pytest

from harness.errors import UserError
from harness.measurement import presets, work
from harness.measurement.limits import usable_cores
from harness.measurement.presets import load_preset, preset_names

VALID = """
title = "A test"
cell_seconds = 1.5
max_rounds = 80

[[sweep]]
label = "One"
source = "a test"
batch_size = 1
seq_len = [256, 64]
d_model = 64
num_heads = [4, 2]
mask = ["none", "padding"]
padded_share = 0.25
dtype = ["float32", "bfloat16"]
mode = ["training", "inference"]
threads = ["all", 1]
"""


@pytest.fixture
def write_preset(tmp_path):
    def write(text: str = VALID, **replaced: str):
        for line, replacement in replaced.items():
            matching = [each for each in text.splitlines() if each.startswith(f"{line} ")]
            assert len(matching) == 1
            text = text.replace(matching[0], replacement)
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def error_of(path) -> str:
    with pytest.raises(UserError) as caught:
        load_preset(str(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", preset_names())
def test_every_built_in_preset_loads_with_unique_keys_from_small_to_large(name):
    workloads = load_preset(name).workloads()
    keys = [workload.key for workload in workloads]
    assert len(set(keys)) == len(keys) > 0
    costs = [work.flops(workload) for workload in workloads]
    assert costs == sorted(costs)


def test_the_built_in_presets_are_there_by_name():
    assert preset_names() == ("default", "full", "llms-from-scratch", "models", "quick")


def test_default_has_its_31_workloads_and_full_has_them_all():
    default = {workload.key for workload in load_preset("default").workloads()}
    assert len(default) == 30
    assert default < {workload.key for workload in load_preset("full").workloads()}


def test_a_sweep_gives_every_combination_once(write_preset):
    workloads = load_preset(str(write_preset())).workloads()
    threads = len({usable_cores(), 1})
    assert len(workloads) == 2 * 2 * 2 * 2 * 2 * threads
    assert {workload.padded_share for workload in workloads if workload.mask == "padding"} == {0.25}
    assert {workload.padded_share for workload in workloads if workload.mask == "none"} == {0.0}


def test_all_threads_are_the_physical_cores_that_may_be_used(write_preset, monkeypatch):
    monkeypatch.setattr(presets, "usable_cores", lambda: 7)
    assert {workload.threads for workload in load_preset(str(write_preset())).workloads()} == {7, 1}


def test_a_workload_of_two_sweeps_appears_once_under_its_first_label(write_preset):
    second = VALID[VALID.index("[[sweep]]") :].replace('"One"', '"Two"').replace("seq_len = [256, 64]", "seq_len = 64")
    both = load_preset(str(write_preset(VALID + second))).workloads()
    assert both == load_preset(str(write_preset())).workloads()


def test_an_unknown_name_lists_the_presets():
    assert "no preset named 'quik'; there are default, full, llms-from-scratch, models, quick" in error_of("quik")


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.toml"
    assert error_of(path).startswith(f"preset {path}: no such file")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    assert error_of(folder).startswith(f"preset {folder}: not readable")


def test_what_is_not_toml_is_named_with_its_place(write_preset):
    assert "not TOML: " in error_of(write_preset("title = \n"))
    assert "line 1" in error_of(write_preset("title = \n"))


def test_what_is_not_text_is_named(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"preset {path}: not readable" in error_of(path)


@pytest.mark.parametrize(
    ("replaced", "parts"),
    [
        ({"dtype": 'dtype = ["float32", "fp16"]'}, ["sweep[1].dtype[2]: got 'fp16'", "'bfloat16' or 'float16'"]),
        ({"dtype": 'dtype = "half"'}, ["sweep[1].dtype[1]: got 'half'", "allowed: 'float64'"]),
        ({"mask": 'mask = "triangle"'}, ["sweep[1].mask[1]: got 'triangle'", "'causal_mask'"]),
        ({"mode": 'mode = "train"'}, ["sweep[1].mode[1]: got 'train'", "'inference', 'forward' or 'training'"]),
        ({"threads": 'threads = "many"'}, ["sweep[1].threads[1]: got 'many'", '"all"', "at least 1"]),
        ({"threads": "threads = 0"}, ["sweep[1].threads[1]: got 0", "at least 1"]),
        ({"threads": "threads = true"}, ["sweep[1].threads[1]: got True", "at least 1"]),
        ({"threads": "threads = []"}, ["sweep[1].threads: ", "at least 1 item"]),
        ({"seq_len": "seq_len = 0"}, ["sweep[1].seq_len[1]: got 0", "greater than or equal to 1"]),
        ({"seq_len": "seq_len = 1.5"}, ["sweep[1].seq_len[1]: got 1.5", "valid integer"]),
        ({"seq_len": "seqlen = 64"}, ["sweep[1].seqlen: ", "no such key; allowed: label", "seq_len"]),
        ({"seq_len": ""}, ["sweep[1].seq_len: this key is required"]),
        ({"label": 'label = "One"\ncolour = "red"'}, ["sweep[1].colour: got 'red', no such key", "num_heads"]),
        (
            {"title": 'titel = "A test"\ntitle = "A test"'},
            ["titel: got 'A test'", "title, cell_seconds, max_rounds, sweep"],
        ),
        ({"cell_seconds": "cell_seconds = -1"}, ["cell_seconds: got -1", "greater than 0"]),
        ({"max_rounds": "max_rounds = 3"}, ["max_rounds: got 3", "greater than or equal to 9"]),
        ({"padded_share": ""}, ["sweep[1]: padded_share (above 0, below 1) is required with mask 'padding'"]),
        ({"padded_share": "padded_share = 1.0"}, ["sweep[1].padded_share: got 1.0", "less than 1"]),
        ({"num_heads": "num_heads = 3"}, ["num_heads must divide d_model, and 3 does not divide 64"]),
        ({"label": 'device = "tpu"\nlabel = "One"'}, ["sweep[1].device: got 'tpu'", "'cpu' or 'cuda'"]),
    ],
)
def test_a_wrong_key_or_value_is_one_line_with_file_key_and_what_is_allowed(write_preset, replaced, parts):
    path = write_preset(**replaced)
    message = error_of(path)
    assert message.startswith(f"{path}: ")
    assert [part for part in parts if part not in message] == []


def test_two_shares_of_padding_for_one_workload_are_refused(write_preset):
    second = VALID[VALID.index("[[sweep]]") :].replace("0.25", "0.5")
    assert "different values of padded_share" in error_of(write_preset(VALID + second))


def test_a_preset_without_sweeps_is_refused(write_preset):
    assert "sweep: this key is required" in error_of(write_preset(VALID[: VALID.index("[[sweep]]")]))
