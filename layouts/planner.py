"""Layout planner: select a layout for each edge of a graph, with the smallest sum of node and conversion costs.

This is a partitioned Boolean quadratic problem (PBQP). The solver eliminates one node after another. For each
combination of its neighbours' options, a table stores the lowest cost of the eliminated node. This is exact, and cheap
while the graph is narrow (chains, residuals, joining branches). Where all tables would be too large, the node with the
most neighbours takes its locally cheapest option (the reduction RN). A local search then improves the result node by
node. The same elimination with tables split into smaller ones gives a lower bound of the cost. Heaps select the next
node, and no step scans all nodes or all links of a node repeatedly: time grows in proportion to the graph.

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

Link = tuple[int, int, np.ndarray]  # two nodes, and the cost of each pair of their options
Table = tuple[tuple[int, ...], np.ndarray]  # nodes in order, and the cost of each combination of their options

MAX_ENTRIES = 1 << 16  # max. entries of a table: about 1 ms of work
_MANY = 64  # max. neighbours with two options or more, as table axes
_SWEEPS = 100  # max. sweeps of the local search; only graphs made to hinder it need as many


def solve(costs: Sequence[np.ndarray], links: Sequence[Link]) -> tuple[list[int], float, bool]:
    """Select one option per node, with a small sum of costs.

    Parameters
    ----------
    costs : Sequence[np.ndarray]
        The cost of each option, per node, at least one; inf forbids an option.
    links : Sequence[Link]
        (i, j, matrix): ``matrix[a, b]`` is added if node i takes option a and node j takes option b.

    Returns
    -------
    tuple[list[int], float, bool]
        The option of each node, the sum of costs, and whether the sum is the minimum.

    Raises
    ------
    ValueError
        All selections that were found cost inf.
    """
    options, tables = [len(cost) for cost in costs], _tables(costs, links)
    picked, _, exact = _eliminate(options, tables)
    picked = picked if exact else _improved(options, tables, picked)
    total = _total(tables, picked)
    if not np.isfinite(total):
        raise ValueError("Arguments 'costs' and 'links' must allow a selection; none was found.")
    return picked, total, exact


def least(costs: Sequence[np.ndarray], links: Sequence[Link]) -> float:
    """Return a lower bound of all selections' costs; where `solve` is exact, the minimum, except for rounding.

    Parameters
    ----------
    costs, links
        As for `solve`.
    """
    return _eliminate([len(cost) for cost in costs], _tables(costs, links), split=True)[1]


def _tables(costs: Sequence[np.ndarray], links: Sequence[Link]) -> list[Table]:
    """Return all costs as tables: one per node, and one per linked pair."""
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
    """Eliminate nodes in order of table size, smallest first, then choose options in reverse order.

    Where all tables are too large, the node with the most neighbours is fixed. With `split` its tables are minimised
    separately instead, as if the node could take another option for each; this gives a lower bound.

    Returns
    -------
    tuple of list, float and bool
        A selection; its cost, or with split tables a lower bound of all costs; and whether no node was fixed and no
        table split.
    """
    left = _Left(options, tables)
    picked = [0] * len(options)
    order: list[tuple[int, list[Table]]] = []
    paid, exact = sum(left.fix(i, 0) for i, count in enumerate(options) if count == 1), True
    while (i := left.smallest()) is not None:
        groups = None
        if left.size(i) > MAX_ENTRIES:
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
    """The remaining nodes of an elimination, and their tables, one table per set of nodes.

    Two heaps order the nodes: by the size of the sum of their tables, and by the number of their neighbours. A changed
    node is pushed again; its outdated entries are skipped.
    """

    def __init__(self, options: Sequence[int], tables: Sequence[Table]) -> None:
        self._options = options
        self._of: dict[int, dict[tuple[int, ...], np.ndarray]] = {i: {} for i in range(len(options))}
        self._near = [Counter[int]() for _ in options]  # neighbours, and the number of shared tables per neighbour
        self._by_size: list[tuple[float, int]] = []
        self._by_degree: list[tuple[int, int]] = []
        for nodes, costs in tables:
            self._add(nodes, costs)
        for i in self._of:
            self._wait(i)

    def tables(self, i: int) -> list[Table]:
        """Return the tables of node `i`."""
        return list(self._of[i].items())

    def size(self, i: int) -> float:
        """Return the entries of the sum of a node's tables; infinity with more than `_MANY` neighbours."""
        near = self._near[i]
        return math.inf if len(near) > _MANY else math.prod(self._options[j] for j in (*near, i))

    def smallest(self) -> int | None:
        """Return the node with the smallest sum of tables, the first of equal ones; None if no node remains."""
        while self._by_size:
            size, i = self._by_size[0]
            if i in self._of and self.size(i) == size:
                return i
            heapq.heappop(self._by_size)
        return None

    def busiest(self) -> int:
        """Return the node with the most neighbours, the first of equal ones."""
        while True:
            degree, i = self._by_degree[0]
            if i in self._of and len(self._near[i]) == -degree:
                return i
            heapq.heappop(self._by_degree)

    def add(self, nodes: tuple[int, ...], costs: np.ndarray) -> None:
        """Add a table of remaining nodes."""
        self._add(nodes, costs)
        for i in nodes:
            self._wait(i)

    def take(self, i: int) -> list[Table]:
        """Remove a node and its tables; return the tables."""
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
        """Fix the option of a node and reduce its tables to this option; return the cost of the node alone."""
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
        """Return the cost of each option of a node, if its neighbours choose their options for this node alone."""
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
    """Return the tables of each node."""
    of: list[list[Table]] = [[] for _ in range(count)]
    for table in tables:
        for i in table[0]:
            of[i].append(table)
    return of


def _joined(i: int, tables: Sequence[Table], options: Sequence[int]) -> Table:
    """Return the sum of tables that contain node `i`, which becomes the last axis."""
    nodes = (*sorted({j for part, _ in tables for j in part if j != i}), i)
    total = np.zeros([options[j] for j in nodes])
    for part, costs in tables:
        total += costs.transpose(np.argsort([nodes.index(j) for j in part])).reshape(
            [options[j] if j in part else 1 for j in nodes]
        )
    return nodes, total


def _groups(tables: Sequence[Table], options: Sequence[int]) -> list[list[Table]]:
    """Group tables so that the sum of each group has at most `MAX_ENTRIES` entries, unless a single table has more."""
    groups: list[list[Table]] = []
    around: set[int] = set()  # nodes of the current group
    for table in sorted(tables, key=lambda table: -table[1].size):
        around = around.union(table[0])
        if groups and math.prod(options[j] for j in around) <= MAX_ENTRIES:
            groups[-1].append(table)
        else:
            groups.append([table])
            around = set(table[0])
    return groups


def _local(i: int, tables: Sequence[Table], picked: Sequence[int]) -> np.ndarray:
    """Return the cost of each option of a node, given the options picked for the others."""
    return sum(
        (costs[tuple(slice(None) if j == i else picked[j] for j in nodes)] for nodes, costs in tables), np.zeros(())
    )


def _improved(options: Sequence[int], tables: Sequence[Table], picked: list[int]) -> list[int]:
    """Change one node at a time while the sum falls; skip nodes whose neighbourhood is unchanged."""
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
    """Return the cost of a selection."""
    return sum(float(costs[tuple(picked[j] for j in nodes)]) for nodes, costs in tables)
