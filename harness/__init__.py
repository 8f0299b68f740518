"""The MHA harness: which multi-head attention implementation should I use here, and is it right?

`harness` verifies and measures what `implementations` registers, and writes records that `reports` renders.
"""

from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"


def _refuse_a_foreign_package_of_the_same_name() -> None:
    # `implementations` is a plain name: a folder of the user's own would shadow ours and fail much later,
    # with an error that names neither.
    spec = find_spec("implementations")
    expected = Path(__file__).resolve().parent.parent / "implementations"
    found = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    if found != expected:
        raise ImportError(
            f"mha needs its own package `implementations` from {expected}, but Python finds "
            f"{found or 'none'}; run from another folder or rename that package"
        )


_refuse_a_foreign_package_of_the_same_name()
