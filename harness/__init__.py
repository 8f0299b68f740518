"""The MHA harness: which multi-head attention implementation should I use here, and is it right?

`harness` verifies and measures what `implementations` registers, and writes records that `reports` renders.
"""

from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"


def require_own_implementations() -> None:
    """Refuse to go on when another package of the name `implementations` would be imported instead of ours.

    It is a plain name: a folder of the user's own can shadow it, and would fail much later, with an error that names
    neither.

    Raises:
        UserError: Python finds another one, or none.
    """
    from harness.errors import UserError

    spec = find_spec("implementations")
    expected = Path(__file__).resolve().parent.parent / "implementations"
    found = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    if found != expected:
        raise UserError(
            f"mha needs its own package `implementations` ({expected}), but Python finds {found or 'none'}; "
            "run mha from another folder, or rename that package"
        )
