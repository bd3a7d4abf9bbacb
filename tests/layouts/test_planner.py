"""The planner against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layouts import least, planner, solve

costs = st.one_of(st.integers(0, 20).map(float), st.just(float("inf")))


def matrix(rows: int, columns: int) -> st.SearchStrategy[np.ndarray]:
    row = st.lists(costs, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows).map(lambda table: np.array(table, float))


@st.composite
def graphs(draw, most_nodes=6, most_links=10):
    """Node costs and links, self-links and parallel links among them."""
    options = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most_nodes))
    nodes = [np.array(draw(st.lists(costs, min_size=count, max_size=count))) for count in options]
    ends = st.integers(0, len(options) - 1)
    links = draw(st.lists(st.tuples(ends, ends), max_size=most_links))
    return nodes, [(i, j, draw(matrix(options[i], options[j]))) for i, j in links]


def total(nodes, links, picked) -> float:
    return sum(cost[p] for cost, p in zip(nodes, picked, strict=True)) + sum(
        m[picked[i], picked[j]] for i, j, m in links
    )


def brute_force(nodes, links) -> float:
    return min(total(nodes, links, picked) for picked in itertools.product(*(range(len(cost)) for cost in nodes)))


@pytest.mark.parametrize("most", [4, 27, 1 << 16], ids=lambda most: f"tables of {most} at most")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=graphs())
def test_solve_and_its_bound_against_brute_force(monkeypatch, most, graph):
    monkeypatch.setattr(planner, "MAX_ENTRIES", most)
    nodes, links = graph
    best = brute_force(nodes, links)
    assert least(nodes, links) <= best
    try:
        picked, cost, exact = solve(nodes, links)
    except ValueError:
        assert most < 1 << 16 or np.isinf(best)  # with small tables the only way through may be missed
        return
    assert cost == total(nodes, links, picked)
    assert cost == best == least(nodes, links) if exact else cost >= best
    assert exact or most < 1 << 16


@settings(max_examples=200, deadline=None)
@given(graphs(most_links=3))
def test_sparse_graphs_are_solved_exactly_or_have_no_solution(graph):
    nodes, links = graph  # with three links some node always has two neighbours or fewer
    best = brute_force(nodes, links)
    if np.isinf(best):
        with pytest.raises(ValueError, match="none was found"):
            solve(nodes, links)
    else:
        assert solve(nodes, links)[1:] == (best, True)


def test_a_residual_network_of_200_nodes_is_exact():
    rng = np.random.default_rng(0)
    nodes = [rng.uniform(1, 5, 9) for _ in range(200)]
    ends = [(i, i + 1) for i in range(199)] + [(i, i + 3) for i in range(0, 196, 4)]
    links = [(i, j, rng.uniform(0, 2, (9, 9))) for i, j in ends]
    picked, cost, exact = solve(nodes, links)
    assert exact and cost == pytest.approx(total(nodes, links, picked)) == pytest.approx(least(nodes, links))


def test_a_dear_link_is_avoided_and_a_cheap_one_taken():
    nodes = [np.array([1.0, 3.0]), np.array([1.0])]
    assert solve(nodes, [(0, 1, np.array([[1.0], [0.0]]))]) == ([0, 0], 3.0, True)
    assert solve(nodes, [(0, 1, np.array([[9.0], [0.0]]))]) == ([1, 0], 4.0, True)


def test_nothing_costs_nothing():
    assert solve([], []) == ([], 0.0, True)


def star(leaves: int, options: int, rng: np.random.Generator):
    """A node of three options in the middle of others, which it alone is linked to."""
    nodes = [rng.uniform(1, 5, 3), *(rng.uniform(1, 5, options) for _ in range(leaves))]
    return nodes, [(0, at, rng.uniform(0, 2, (3, options))) for at in range(1, leaves + 1)]


@pytest.mark.parametrize("options", [1, 2])
@pytest.mark.parametrize("leaves", [70, 20_000])
def test_a_node_of_many_neighbours_is_solved_exactly(leaves, options):
    nodes, links = star(leaves, options, np.random.default_rng(0))
    best = min(
        cost + sum((matrix[at] + nodes[leaf]).min() for _, leaf, matrix in links) for at, cost in enumerate(nodes[0])
    )
    picked, cost, exact = solve(nodes, links)
    assert exact and cost == pytest.approx(best) == pytest.approx(total(nodes, links, picked))
    assert least(nodes, links) == pytest.approx(best)


def test_nodes_of_many_neighbours_each_have_a_solution_and_a_bound():
    """70 nodes, all linked to 70 others: no table holds all neighbours of any."""
    rng = np.random.default_rng(0)
    nodes = [rng.uniform(1, 5, 2) for _ in range(140)]
    links = [(i, 70 + j, rng.uniform(0, 2, (2, 2))) for i in range(70) for j in range(70)]
    picked, cost, exact = solve(nodes, links)
    assert not exact and cost == pytest.approx(total(nodes, links, picked))
    assert least(nodes, links) < cost
    for i in range(140):  # no node is better off with the other option
        assert total(nodes, links, [1 - p if i == at else p for at, p in enumerate(picked)]) >= cost - 1e-9


@pytest.mark.timeout(60)  # seconds, where a scan of all nodes for each takes minutes
def test_thousands_of_nodes_take_seconds():
    rng, count = np.random.default_rng(0), 20_000
    nodes = [rng.uniform(1, 5, 2) for _ in range(count)]
    chain = [(i, i + 1, rng.uniform(0, 2, (2, 2))) for i in range(count - 1)]
    shared = [(0, i, rng.uniform(0, 2, (2, 2))) for i in range(2, count)]  # what the first makes, all others read
    costs = [np.array(cost) for cost in nodes]
    forward = costs[0]
    for i, _, matrix in chain:
        forward = (forward[:, None] + matrix).min(axis=0) + costs[i + 1]
    assert solve(nodes, chain)[1:] == (pytest.approx(forward.min()), True)
    picked, cost, exact = solve(nodes, chain + shared)
    assert exact and cost == pytest.approx(total(nodes, chain + shared, picked))
