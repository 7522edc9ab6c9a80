"""needleman_wunsch: scores of global alignment, an anti-diagonal of blocks at a time.

With s the table of substitutions and gap g, row i and column j of the matrix score the best alignment of the first i
letters of one sequence with the first j of the other::

    H[i, j] = max(H[i-1, j-1] + s[first[i-1], second[j-1]], H[i-1, j] - g, H[i, j-1] - g)

References
----------
S. B. Needleman, C. D. Wunsch, "A general method applicable to the search for similarities in the amino acid sequence
of two proteins", Journal of Molecular Biology 48 (1970).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, LocalArgument, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import int32, launch, long, pointers
from polymux.kernel.definition import Definition

_LETTERS, _SCORES = (DType.U8,), (DType.I32,)
SPEC = KernelSpec(
    "needleman_wunsch",
    inputs=(
        BufferParam("first", _LETTERS),
        BufferParam("second", _LETTERS),
        *(BufferParam(name, _SCORES) for name in ("substitution", "top", "left", "scores")),
    ),
    outputs=(BufferParam("scores_out", _SCORES),),
    scalars=(
        ScalarParam("diagonal", DType.I64),
        ScalarParam("block", DType.I64, 64),
        ScalarParam("gap", DType.I64, 1),
    ),
    idempotent=True,
    doc="Scores of global alignment (Needleman and Wunsch) of two sequences of n and m letters, numbers below the size"
    " of the table of substitutions: fills, in place, the blocks of scores (n + 1, m + 1) on anti-diagonal `diagonal`,"
    " counted in blocks of `block` x `block`, with row 0 from top (m + 1) and column 0 from left (n + 1). `gap` is what"
    " a gap costs for each letter. Diagonals 0, 1, ... one after the other fill all. A letter beyond the table is an"
    " error on cpu devices and counts as the last one elsewhere.",
)
SOURCE = """
// A work-group fills a block, a work-item one of its rows, one column later than the row above it.
__kernel void needleman_wunsch(__global const uchar *first, __global const uchar *second,
                               __global const int *substitution, __global const int *top, __global const int *left,
                               __global int *scores, __local int *line, long n, long m, int letters, int gap,
                               long diagonal, long begin) {
  const int block = get_local_size(0), r = get_local_id(0);
  const long down = begin + get_group_id(0), across = diagonal - down, stride = m + 1;
  const long row = down * block + r, column = across * block;
  const int rows = (int)clamp(n - down * block, 0L, (long)block);
  const int columns = (int)clamp(m - column, 0L, (long)block);
  const bool used = r < rows;
  __global int *out = scores + (row + 1) * stride + column + 1;
  __global const int *match = substitution;
  int behind = 0, corner = 0;  // the scores to the left, and above that
  if (down == 0) {
    for (int c = r; c < columns; c += block) scores[column + 1 + c] = top[column + 1 + c];
    if (across == 0 && r == 0) scores[0] = top[0];
  }
  if (used) {
    match += min((int)first[row], letters - 1) * letters;
    behind = across == 0 ? left[row + 1] : out[-1];
    corner = down == 0 && r == 0 ? top[column] : across == 0 ? left[row] : out[-1 - stride];
    if (across == 0) out[-1] = behind;
  }
  for (int d = 0; d < rows + columns - 1; ++d) {
    const int c = d - r;
    if (used && c >= 0 && c < columns) {
      int above;
      if (r > 0) above = line[((d + 1) & 1) * block + r - 1];
      else above = down == 0 ? top[column + 1 + c] : out[c - stride];
      const int both = corner + match[min((int)second[column + c], letters - 1)];
      const int score = max(max(both, above - gap), behind - gap);
      line[(d & 1) * block + r] = score;
      out[c] = score;
      corner = above;
      behind = score;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
"""


def _blocks(extent: int, block: int) -> int:
    return max(1, -(-extent // block))


def diagonals(n: int, m: int, block: int = 64) -> int:
    """Number of tasks that fill the matrix for sequences of `n` and `m` letters."""
    return _blocks(n, block) + _blocks(m, block) - 1


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-group per block, one work-item per row of it."""
    arrays = check.named(spec, buffers)
    _check_shapes(arrays)
    diagonal, block, gap = (int(scalars[name]) for name in ("diagonal", "block", "gap"))
    if not 16 <= block <= 256 or block % 16:
        raise InvalidRequest(f"block is {block}, expected a multiple of 16 from 16 to 256")
    if not -1_000_000 <= gap <= 1_000_000:
        raise InvalidRequest(f"gap is {gap}, expected -1000000 to 1000000")
    (n,), (m,) = arrays["first"].shape, arrays["second"].shape
    down, across = _blocks(n, block), _blocks(m, block)
    if not 0 <= diagonal < down + across - 1:
        raise InvalidRequest(
            f"diagonal is {diagonal}, expected 0 to {down + across - 2} for scores of shape"
            f" {arrays['scores'].shape} in blocks of {block}"
        )
    begin = max(0, diagonal - across + 1)
    count = min(diagonal + 1, down) - begin
    arguments = [
        *pointers(5),
        BufferArgument(6),
        LocalArgument(2 * block * 4),
        *(long(n), long(m), int32(arrays["substitution"].shape[0]), int32(gap), long(diagonal), long(begin)),
    ]
    return OpenCLPlan((launch("needleman_wunsch", arguments, (count * block,), (block,)),))


def _check_shapes(arrays: Mapping[str, BufferView]) -> None:
    check.require_rank(arrays, "first", 1, "(letters,)")
    check.require_rank(arrays, "second", 1, "(letters,)")
    check.require_rank(arrays, "substitution", 2, "(letters, letters)")
    letters, others = arrays["substitution"].shape
    if not 1 <= letters <= 256 or others != letters:
        raise InvalidRequest(
            f"substitution has shape {(letters, others)}, expected a square of 1 to 256 letters"
        )
    (n,), (m,) = arrays["first"].shape, arrays["second"].shape
    check.require_shape(arrays, "top", (m + 1,), "one more than second")
    check.require_shape(arrays, "left", (n + 1,), "one more than first")
    check.require_shape(arrays, "scores", (n + 1, m + 1), "one more than first and second")
    check.require_shape(arrays, "scores_out", (n + 1, m + 1), "that of scores")
    if not check.same_memory(arrays["scores_out"], arrays["scores"]):
        raise InvalidRequest("scores_out must be the buffer scores: the matrix is filled in place")
    check.require_apart(arrays, "scores_out", "substitution", "top", "left")


KERNEL = Definition(SPEC, (native("needleman_wunsch"), OpenCLSource(SOURCE, plan)))
