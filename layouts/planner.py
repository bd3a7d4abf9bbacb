"""Which layout each edge of a graph takes: the cheapest sum of node costs and conversion costs.

This is a partitioned Boolean quadratic problem (PBQP). Nodes are eliminated one after another: a table says what the
node costs at its best for every combination of what its neighbours choose. That is exact, and cheap for as long as the
graph is narrow (chains, residuals, branches that join). Where all tables would be too large, the node of the most
neighbours takes the option that looks cheapest from where it stands (the reduction RN), and the result is improved node
by node; how far it is from the best at most, the same elimination with tables split into smaller ones says. Heaps say
which node is next, and nothing looks at all nodes or all links of one again and again: time grows as the graph does.

References: Scholz and Eckstein, Register allocation for irregular architectures, LCTES 2002; Anderson and Gregg,
Optimal DNN primitive selection with partitioned boolean quadratic programming, CGO 2018; Dechter and Rish,
Mini-buckets: a general scheme for bounded inference, Journal of the ACM, 2003.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

Link = tuple[int, int, np.ndarray]  # two nodes, and what each pair of their options adds
Table = tuple[tuple[int, ...], np.ndarray]  # nodes in order, and what each combination of their options adds

MOST = 1 << 16  # entries of a table: a millisecond's work
_MANY = 64  # neighbours, of two options or more: no table has so many axes
_SWEEPS = 100  # times that a selection is improved, which ends sooner but for graphs made to hinder it


def solve(costs: Sequence[np.ndarray], links: Sequence[Link]) -> tuple[list[int], float, bool]:
    """One option for each node, so that the sum of costs is small.

    Parameters
    ----------
    costs : Sequence[np.ndarray]
        For each node the cost of each of its options, at least one; inf forbids one.
    links : Sequence[Link]
        (i, j, matrix): what option a of node i with option b of node j adds, ``matrix[a, b]``.

    Returns
    -------
    tuple[list[int], float, bool]
        The option of each node, the sum, and whether it is the minimum.

    Raises
    ------
    ValueError
        Every selection found costs inf.
    """
    options, tables = [len(cost) for cost in costs], _tables(costs, links)
    picked, _, exact = _eliminate(options, tables)
    picked = picked if exact else _improved(options, tables, picked)
    total = _total(tables, picked)
    if not np.isfinite(total):
        raise ValueError("Arguments 'costs' and 'links' must allow a selection; none was found.")
    return picked, total, exact


def least(costs: Sequence[np.ndarray], links: Sequence[Link]) -> float:
    """A sum that no selection is below; where `solve` is exact, that of its selection but for rounding.

    Parameters
    ----------
    costs, links
        As for `solve`.
    """
    return _eliminate([len(cost) for cost in costs], _tables(costs, links), split=True)[1]


def _tables(costs: Sequence[np.ndarray], links: Sequence[Link]) -> list[Table]:
    """All costs as tables: one for each node, and one for each pair that is linked."""
    nodes = [np.array(cost, float) for cost in costs]
    pairs: dict[tuple[int, ...], np.ndarray] = {}
    for i, j, matrix in links:
        if i == j:
            nodes[i] += np.diagonal(matrix)
            continue
        pair, added = ((i, j), matrix) if i < j else ((j, i), np.transpose(matrix))
        pairs[pair] = pairs[pair] + added if pair in pairs else np.array(added, float)
    return [*(((i,), cost) for i, cost in enumerate(nodes)), *pairs.items()]


def _eliminate(options: Sequence[int], tables: Sequence[Table], split: bool = False) -> tuple[list[int], float, bool]:
    """Eliminate node after node, the one with the smallest table first, then choose in reverse order.

    Where all are too large a node is fixed; with `split` its tables are minimised apart instead, as if it could take an
    option for each.

    Returns
    -------
    tuple of list, float and bool
        A selection; what it costs if nothing was split, else a sum that no selection is below; and whether nothing was
        fixed or split.
    """
    left = _Left(options, tables)
    picked = [0] * len(options)
    order: list[tuple[int, list[Table]]] = []
    paid, exact = sum(left.fix(i, 0) for i, count in enumerate(options) if count == 1), True
    while (i := left.smallest()) is not None:
        groups = None
        if left.size(i) > MOST:
            exact = False
            if not split:
                i = left.busiest()
                picked[i] = int(np.argmin(left.outlook(i)))
                paid += left.fix(i, picked[i])
                continue
            groups = _groups(left.tables(i), options)
        order.append((i, held := left.take(i)))
        for group in groups or [held]:
            (*rest, _), joined = _joined(i, group, options)
            if rest:
                left.add(tuple(rest), joined.min(axis=-1))
            else:
                paid += float(joined.min())
    for i, held in reversed(order):
        picked[i] = int(np.argmin(_local(i, held, picked)))
    return picked, paid, exact


class _Left:
    """The nodes that are left in an elimination, and their tables, one for those of the same nodes.

    Nodes wait in two heaps, by the size of the sum of their tables and by the number of their neighbours. Where one
    changes it is put in again, and what it was before is passed over.
    """

    def __init__(self, options: Sequence[int], tables: Sequence[Table]) -> None:
        self._options = options
        self._of: dict[int, dict[tuple[int, ...], np.ndarray]] = {i: {} for i in range(len(options))}
        self._near = [Counter[int]() for _ in options]  # neighbours, and how many tables are of both
        self._by_size: list[tuple[float, int]] = []
        self._by_degree: list[tuple[int, int]] = []
        for nodes, costs in tables:
            self._add(nodes, costs)
        for i in self._of:
            self._wait(i)

    def tables(self, i: int) -> list[Table]:
        """Those that a node has a part in."""
        return list(self._of[i].items())

    def size(self, i: int) -> float:
        """Entries of the sum of a node's tables; of very many neighbours, infinity."""
        near = self._near[i]
        return math.inf if len(near) > _MANY else math.prod(self._options[j] for j in (*near, i))

    def smallest(self) -> int | None:
        """The node with the smallest sum of its tables, the first of equal ones; None: no node is left."""
        while self._by_size:
            size, i = self._by_size[0]
            if i in self._of and self.size(i) == size:
                return i
            heapq.heappop(self._by_size)
        return None

    def busiest(self) -> int:
        """The node with the most neighbours, the first of equal ones."""
        while True:
            degree, i = self._by_degree[0]
            if i in self._of and len(self._near[i]) == -degree:
                return i
            heapq.heappop(self._by_degree)

    def add(self, nodes: tuple[int, ...], costs: np.ndarray) -> None:
        """One table more, of nodes that are left."""
        self._add(nodes, costs)
        for i in nodes:
            self._wait(i)

    def take(self, i: int) -> list[Table]:
        """A node's tables; neither it nor they are left."""
        tables, around = self.tables(i), list(self._near[i])
        for nodes, _ in tables:
            for j in nodes:
                del self._of[j][nodes]
            self._count(nodes, -1)
        del self._of[i]
        for j in around:
            self._wait(j)
        return tables

    def fix(self, i: int, option: int) -> float:
        """Let a node take an option: of its tables the parts for that are left; what it costs alone."""
        alone = 0.0
        for nodes, costs in self.take(i):
            at = nodes.index(i)
            rest, part = (*nodes[:at], *nodes[at + 1 :]), costs.take(option, at)
            if rest:
                self.add(rest, part)
            else:
                alone = float(part)
        return alone

    def outlook(self, i: int) -> np.ndarray:
        """What each option of a node costs if its neighbours choose for it alone."""
        total = np.zeros(self._options[i])
        for nodes, costs in self.tables(i):
            alone = [((j,), self._of[j][j,]) for j in nodes if j != i]
            joined = _joined(i, [(nodes, costs), *alone], self._options)[1]
            total += joined.min(axis=tuple(range(joined.ndim - 1)))
        return total

    def _add(self, nodes: tuple[int, ...], costs: np.ndarray) -> None:
        known = self._of[nodes[0]].get(nodes)
        if known is None:
            self._count(nodes, 1)
        else:
            costs = known + costs
        for i in nodes:
            self._of[i][nodes] = costs

    def _count(self, nodes: tuple[int, ...], change: int) -> None:
        for i in nodes:
            near = self._near[i]
            for j in nodes:
                if j != i:
                    near[j] += change
                    if not near[j]:
                        del near[j]

    def _wait(self, i: int) -> None:
        heapq.heappush(self._by_size, (self.size(i), i))
        heapq.heappush(self._by_degree, (-len(self._near[i]), i))


def _by_node(tables: Sequence[Table], count: int) -> list[list[Table]]:
    """The tables that each node has a part in."""
    of: list[list[Table]] = [[] for _ in range(count)]
    for table in tables:
        for i in table[0]:
            of[i].append(table)
    return of


def _joined(i: int, tables: Sequence[Table], options: Sequence[int]) -> Table:
    """The sum of tables that have a part of a node, which comes last."""
    nodes = (*sorted({j for part, _ in tables for j in part if j != i}), i)
    total = np.zeros([options[j] for j in nodes])
    for part, costs in tables:
        total += costs.transpose(np.argsort([nodes.index(j) for j in part])).reshape(
            [options[j] if j in part else 1 for j in nodes]
        )
    return nodes, total


def _groups(tables: Sequence[Table], options: Sequence[int]) -> list[list[Table]]:
    """Tables in groups whose sums are not too large, if only the tables are not."""
    groups: list[list[Table]] = []
    around: set[int] = set()  # nodes of the last group
    for table in sorted(tables, key=lambda table: -table[1].size):
        around = around.union(table[0])
        if groups and math.prod(options[j] for j in around) <= MOST:
            groups[-1].append(table)
        else:
            groups.append([table])
            around = set(table[0])
    return groups


def _local(i: int, tables: Sequence[Table], picked: Sequence[int]) -> np.ndarray:
    """What each option of a node costs beside what the others have picked."""
    return sum(
        (costs[tuple(slice(None) if j == i else picked[j] for j in nodes)] for nodes, costs in tables), np.zeros(())
    )


def _improved(options: Sequence[int], tables: Sequence[Table], picked: list[int]) -> list[int]:
    """Change one node at a time for as long as the sum falls; nodes around which nothing changed are passed over."""
    of = _by_node(tables, len(options))
    stale = [True] * len(options)
    for _ in range(_SWEEPS):
        if True not in stale:
            break
        for i in range(len(options)):
            if not stale[i]:
                continue
            stale[i] = False
            local = _local(i, of[i], picked)
            best = int(np.argmin(local))
            if local[best] < local[picked[i]]:
                picked[i] = best
                for nodes, _ in of[i]:
                    for j in nodes:
                        stale[j] = True
    return picked


def _total(tables: Sequence[Table], picked: Sequence[int]) -> float:
    """The sum of costs of a selection."""
    return sum(float(costs[tuple(picked[j] for j in nodes)]) for nodes, costs in tables)
