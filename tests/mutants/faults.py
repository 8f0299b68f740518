"""Faults that attention code in public really had, each with what stands for it here.

A mutant names the reports it stands for. What no mutant can stand for names the check, the probe or the part of the
measurement that guards against it. `docs/faults.md` is made from this table and the zoo.
"""

from __future__ import annotations

from harness.verification.selftest import Fault

_PROBE = "shown for each implementation by `mha verify --semantics`"
_VARIANT = "a compiled variant is verified on its own, after its eager one"

FAULTS = (
    Fault("Masked rows", "A fully masked row is NaN", ("pytorch#103963",)),
    Fault(
        "Masked rows",
        "One fully masked row puts NaN into all weight gradients, though the loss leaves the row out",
        ("pytorch#41508",),
    ),
    Fault("Masked rows", "One head without any key turns everything into NaN", ("pytorch#160064",)),
    Fault("Masked rows", "A fast path of eval gives NaN where training gives 0", ("pytorch PR 190486",)),
    Fault("Masked rows", "A whole block of masked keys is NaN in an online softmax", ("pytorch#127055",)),
    Fault(
        "Masked rows",
        "A NaN in the input is swallowed, or leaks out of a masked key",
        ("pytorch#141128", "pytorch#101967"),
        _PROBE,
    ),
    Fault(
        "Masked rows",
        "A fill that the dtype cannot hold, or two that overflow in their sum",
        ("transformers PR 17306", "apex#1052"),
    ),
    Fault(
        "Masked rows",
        "Padding is laid on the query axis, which a finite fill hides",
        ("hyunwoongko/transformer PR 40",),
    ),
    Fault("Masked rows", "A small finite fill loses to an allowed logit", ("ViT and BERT code: additive -1e4",)),
    Fault(
        "Polarity",
        "True = masked handed to code where True = keep",
        ("rasbt/LLMs-from-scratch#1061", "x-transformers#160"),
    ),
    Fault("Polarity", "A bool mask in an additive slot", ("diffusers#14342",)),
    Fault(
        "Polarity", "Numbers in place of bools", ("pytorch: a float 0/1 mask is added", "pytorch: ~ on a uint8 mask")
    ),
    Fault("Causality", "The diagonal aligned to the other corner", ("pytorch#103082",)),
    Fault("Causality", "A mask and the flag together", ("pytorch#187801", "pytorch#99282")),
    Fault("Causality", "A window or diagonal off by one", ("transformers#39408", "vllm#3385")),
    Fault("Layout", "Masks tiled over items and heads in the wrong order", ("lighthouse PR 77", "CLIP4Clip#22")),
    Fault("Layout", "Which masks broadcast", ("pytorch#120810",)),
    Fault("Layout", "Strides ignored", ("pytorch#181133", "FlagGems#5896")),
    Fault("Layout", "A bias or head size that is not aligned", ("xformers#813", "xformers#808", "xformers#1263")),
    Fault("Layout", "Heads and sequence exchanged", ("xformers#922",)),
    Fault(
        "Layout",
        "An output that later calls overwrite, an input changed in place",
        ("an output buffer shared by all calls", "an input changed in place"),
    ),
    Fault("Shapes", "Keys and values of unequal length, read past the end", ("pytorch PR 193728",)),
    Fault("Shapes", "Dimensions of size 0", ("pytorch#141219",)),
    Fault("Shapes", "The scale taken from a padded head", ("FasterTransformer#89", "ipex-llm PR 12619")),
    Fault("Precision", "Logits beyond float16", ("pytorch#119131",)),
    Fault("Precision", "Low precision inside, or in the reference", ("pytorch#163588", "flash-attention#1138")),
    Fault(
        "Precision",
        "Softmax without the row's maximum",
        ("softmax without a maximum", "softmax with one maximum for all"),
    ),
    Fault("Gradients", "Double backward and forward-mode derivatives are missing", ("pytorch#116350",), _PROBE),
    Fault(
        "Gradients", "K permuted straight to (B, H, d_k, S) is taken for something else", ("pytorch#195320",), _VARIANT
    ),
    Fault("Gradients", "Softmax over another axis becomes one over the last", ("pytorch#196468",), _VARIANT),
    Fault("Gradients", "A tensor as scale changes the dtype, or does not compile", ("pytorch#191203",), _VARIANT),
    Fault("Gradients", "There is no backward", ("FlexAttention: no backward on the CPU",)),
    Fault("Modes", "Dropout is active in eval", ("pytorch#124464", "timm PR 1978")),
    Fault("Modes", "A row depends on how many others there are", ("TabPFN#800", "pytorch#34060")),
    Fault(
        "Loose tests",
        "Errors that an allclose of ordinary inputs lets pass",
        ("mean of V passes loose tests", "a dropped block passes loose tests"),
    ),
    Fault(
        "Measurement",
        "The clock stops before the device does",
        ("flash-attention#894",),
        "device times come from events; wall times end after a synchronize",
    ),
    Fault(
        "Measurement",
        "Warm-up too short",
        ("triton#2306",),
        "rounds are interleaved, so what is not warm yet meets all alike; the first call is kept apart",
    ),
    Fault("Measurement", "FLOPs counted as 0 for fused CPU kernels", ("pytorch#195460",), "FLOPs are analytic"),
    Fault(
        "Measurement",
        "Peak memory inherited or sampled",
        ("rbx#725", "panbench#196"),
        "CPU peaks come from the allocator's own events",
    ),
    Fault("Measurement", "Denormal inputs", ("ngraph PR 1857",), "denormal inputs are refused before timing"),
    Fault(
        "Measurement",
        "A cold cache that is warm",
        ("flashinfer#4468",),
        "the cache is overwritten before each call on a device",
    ),
    Fault(
        "Measurement",
        "A stale output passes as the answer of a call that never ran",
        ("flashinfer-bench#414",),
        "the last timed block's own output is held against the oracle",
    ),
    Fault(
        "Measurement",
        "A reference that leaves out what the candidate computes",
        ("tritonbench: eager baseline",),
        "all implementations get the same inputs, mask and oracle",
    ),
)
