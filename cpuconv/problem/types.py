"""Element types of a convolution's input, weights, sums and output."""

from __future__ import annotations

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32, NAMED, S8, S32, TABLE, U8, Element
from cpuconv.errors import ArgumentError, must

_SUMS = (F32, F16, S32)
_FORM = f"x:w:y or x:w:sum:y as in u8:s8:u8, each one of {', '.join(TABLE)}"


@dataclass(frozen=True)
class Types:
    """Element types; the text form is benchdnn's ``--dt``, ``u8:s8:u8``.

    The text omits the type of sums if it is the default: s32 for two integers, else f32. Otherwise it is the third of
    four.

    Raises
    ------
    ArgumentError
        The type of sums is not supported, or sums are integers while an operand is not.
    """

    x: Element = F32
    w: Element = F32
    sum: Element = F32
    y: Element = F32

    def __post_init__(self) -> None:
        if self.sum not in _SUMS:
            raise ArgumentError(must("types", f"of sums in {', '.join(map(str, _SUMS))}", f"{self.sum}"))
        if self.sum.integer != (self.x.integer and self.w.integer):
            raise ArgumentError(must("types", "of integer sums if, and only if, both operands are integers", f"{self}"))

    def __hash__(self) -> int:
        """Hash of the fields in which types of a program differ; calls look up by it."""
        return hash((self.x.name, self.w.name, self.y.name))

    def __str__(self) -> str:
        sums = () if self.sum == sums_of(self.x, self.w) else (self.sum,)
        return ":".join(map(str, (self.x, self.w, *sums, self.y)))

    @property
    def in_parts(self) -> bool:
        """Whether input or output are float32 in bfloat16 parts."""
        return self.x.parts > 1 or self.y.parts > 1

    @classmethod
    def parse(cls, text: str) -> Types:
        """Parse types; a single name is the type of input, weights and output. For uint8, weights are int8.

        Raises
        ------
        ArgumentError
            The text is not a list of types.
        """
        try:
            named = [NAMED[name] for name in text.split(":")]
        except KeyError:
            raise ArgumentError(must("types", _FORM, repr(text))) from None
        if len(named) == 1:
            named *= 3
            named[1] = S8 if named[1] == U8 else named[1]
        if len(named) == 3:
            named.insert(2, sums_of(*named[:2]))
        if len(named) != 4:
            raise ArgumentError(must("types", _FORM, repr(text)))
        if named[1].parts > 1 or named[2].parts > 1:
            raise ArgumentError(must("types", "weights and sums that are not in parts", repr(text)))
        return cls(*named)


def sums_of(x: Element, w: Element) -> Element:
    """Default type of sums for operands `x` and `w`."""
    return S32 if x.integer and w.integer else F32


ALL_F32 = Types()
