"""Which layout each edge of a graph takes: the cheapest sum of node costs and conversion costs.

This is a partitioned Boolean quadratic problem (PBQP). Nodes without, with one and with two neighbours are eliminated
exactly (R0, RI, RII); where only nodes of more neighbours are left, the one with the most takes the choice that looks
cheapest from where it stands (RN), and the result is improved node by node. Networks that are chains with simple
branches are solved exactly.

References: Scholz and Eckstein, Register allocation for irregular architectures, LCTES 2002; Anderson and Gregg,
Optimal DNN primitive selection with partitioned boolean quadratic programming, CGO 2018.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Choice = tuple[str, str]  # the layout that a node reads and the one that it writes
Neighbours = list[dict[int, np.ndarray]]  # per node: cost matrix (own option, neighbour's option) to each neighbour


@dataclass(frozen=True)
class Edge:
    """A tensor from node `src` to node `dst`, and what each conversion of it costs: ``{(from, to): cost}``.

    Equal layouts cost nothing unless stated; a pair of other layouts that is missing is impossible.
    """

    src: Hashable
    dst: Hashable
    convert: Mapping[Choice, float]

    def cost(self, written: str, read: str) -> float:
        """The cost of handing on what lies in layout `written` to a reader of layout `read`."""
        return self.convert.get((written, read), 0.0 if written == read else np.inf)


@dataclass(frozen=True)
class Assignment:
    """The layouts chosen.

    Attributes
    ----------
    nodes : dict[Hashable, Choice]
        What each node reads and writes.
    edges : list[Choice]
        What each edge is written in and read in, in the order given; a conversion where the two differ.
    cost : float
        The sum of all node and conversion costs.
    exact : bool
        Whether no other assignment is cheaper; otherwise it is at least as cheap as any uniform one.
    """

    nodes: dict[Hashable, Choice]
    edges: list[Choice]
    cost: float
    exact: bool


def assign(nodes: Mapping[Hashable, Mapping[Choice, float]], edges: Sequence[Edge]) -> Assignment:
    """The layouts of a graph.

    Parameters
    ----------
    nodes : Mapping[Hashable, Mapping[Choice, float]]
        For each node the cost of each (layout read, layout written) that it can do. A tensor with several readers that
        should be converted once for all of them is a node of its own.
    edges : Sequence[Edge]
        The tensors between nodes.

    Returns
    -------
    Assignment
        An assignment, optimal if its `exact` says so, and never dearer than the best one with a single layout.

    Raises
    ------
    ValueError
        A node has no choice, an edge ends at an unknown node, or no assignment is possible.
    """
    for name, table in nodes.items():
        if not table:
            raise ValueError(f"Argument 'nodes' must be tables of at least one choice, not an empty one for {name!r}.")
    index = {name: i for i, name in enumerate(nodes)}
    choices = [list(table) for table in nodes.values()]
    for edge in edges:
        if not {edge.src, edge.dst} <= index.keys():
            raise ValueError(f"Argument 'edges' must be between known nodes, not {edge.src!r} -> {edge.dst!r}.")
    costs = [np.array(list(table.values()), float) for table in nodes.values()]
    links = []
    for edge in edges:
        i, j = index[edge.src], index[edge.dst]
        matrix = [[edge.cost(written, read) for read, _ in choices[j]] for _, written in choices[i]]
        links.append((i, j, np.array(matrix, float)))
    picked, cost, exact = solve(costs, links, _uniform_starts(choices, costs))
    taken = {name: choices[i][picked[i]] for name, i in index.items()}
    return Assignment(taken, [(taken[edge.src][1], taken[edge.dst][0]) for edge in edges], cost, exact)


def _uniform_starts(choices: list[list[Choice]], costs: list[np.ndarray]) -> list[list[int]]:
    """For each layout, the selection that keeps to it; nodes that cannot take what is cheapest for them alone."""
    names = dict.fromkeys(layout for table in choices for choice in table for layout in choice)
    return [
        [
            table.index((name, name)) if (name, name) in table else int(np.argmin(cost))
            for table, cost in zip(choices, costs, strict=True)
        ]
        for name in names
    ]


def solve(
    costs: Sequence[np.ndarray],
    links: Sequence[tuple[int, int, np.ndarray]],
    starts: Sequence[Sequence[int]] = (),
) -> tuple[list[int], float, bool]:
    """One option for each node, so that the sum of costs is small.

    Parameters
    ----------
    costs : Sequence[np.ndarray]
        For each node the cost of each of its options, at least one; inf forbids one.
    links : Sequence[tuple[int, int, np.ndarray]]
        (i, j, matrix): what option a of node i with option b of node j adds, ``matrix[a, b]``.
    starts : Sequence[Sequence[int]]
        Selections that the result must not be dearer than.

    Returns
    -------
    tuple[list[int], float, bool]
        The option of each node, the sum, and whether it is the minimum.

    Raises
    ------
    ValueError
        Every selection found costs inf.
    """
    base, near = _adjacency(costs, links)
    reduced, exact = _reduce([cost.copy() for cost in base], [dict(around) for around in near])
    selections = [reduced] if exact else [_improve(base, near, list(start)) for start in (reduced, *starts)]
    total, picked = min(((_total(base, near, picked), picked) for picked in selections), key=lambda found: found[0])
    if not np.isfinite(total):
        raise ValueError("Argument 'nodes' must be tables that allow an assignment; none was found.")
    return picked, total, exact


def _adjacency(
    costs: Sequence[np.ndarray], links: Sequence[tuple[int, int, np.ndarray]]
) -> tuple[list[np.ndarray], Neighbours]:
    """Costs with self-links folded in, and for each node its neighbours with parallel links added up."""
    base = [np.array(cost, float) for cost in costs]
    near: Neighbours = [{} for _ in base]
    for i, j, matrix in links:
        if i == j:
            base[i] += np.diagonal(matrix)
            continue
        for a, b, m in ((i, j, matrix), (j, i, matrix.T)):
            near[a][b] = near[a][b] + m if b in near[a] else np.array(m, float)
    return base, near


def _reduce(cost: list[np.ndarray], near: Neighbours) -> tuple[list[int], bool]:
    """Eliminate node after node, the one with the fewest neighbours first, then choose in reverse order."""
    left, order, exact = set(range(len(cost))), [], True
    while left:
        i = min(left, key=lambda node: (len(near[node]), node))
        if len(near[i]) > 2:  # RN: fix the node of the most neighbours
            exact = False
            i = max(left, key=lambda node: (len(near[node]), -node))
            local = cost[i] + sum((matrix + cost[j]).min(axis=1) for j, matrix in near[i].items())
            cost[i] = np.where(np.arange(len(local)) == np.argmin(local), cost[i], np.inf)
            chosen = int(np.argmin(local))
            for j, matrix in near[i].items():
                cost[j] = cost[j] + matrix[chosen]
        elif len(near[i]) == 2:  # RII: a link between the neighbours says what i costs at its best
            (j, to_j), (k, to_k) = near[i].items()
            best = (cost[i][:, None, None] + to_j[:, :, None] + to_k[:, None, :]).min(axis=0)
            near[j][k] = near[j][k] + best if k in near[j] else best
            near[k][j] = near[j][k].T
        elif near[i]:  # RI: the neighbour's costs say it
            ((j, to_j),) = near[i].items()
            cost[j] = cost[j] + (cost[i][:, None] + to_j).min(axis=0)
        for j in near[i]:
            del near[j][i]
        left.remove(i)
        order.append(i)
    picked = [0] * len(cost)
    for i in reversed(order):
        picked[i] = int(np.argmin(cost[i] + sum(matrix[:, picked[j]] for j, matrix in near[i].items())))
    return picked, exact


def _improve(cost: list[np.ndarray], near: Neighbours, picked: list[int]) -> list[int]:
    """Change one node at a time for as long as the sum falls."""
    changed = True
    while changed:
        changed = False
        for i in range(len(cost)):
            local = cost[i] + sum(matrix[:, picked[j]] for j, matrix in near[i].items())
            best = int(np.argmin(local))
            if local[best] < local[picked[i]]:
                picked[i], changed = best, True
    return picked


def _total(cost: list[np.ndarray], near: Neighbours, picked: list[int]) -> float:
    """The sum of costs of a selection."""
    nodes = sum(float(cost[i][option]) for i, option in enumerate(picked))
    pairs = ((i, j, matrix) for i, around in enumerate(near) for j, matrix in around.items() if i < j)
    return nodes + sum(float(matrix[picked[i], picked[j]]) for i, j, matrix in pairs)
