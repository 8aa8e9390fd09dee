"""Scripted partners: stated probabilities are the real ones, paths are shortest, goals are true."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from otherminds import BadInput, make, seats
from otherminds.config import Collect
from otherminds.dataset import gather
from otherminds.diagnostics.beliefs import clocks
from otherminds.games.ego import view
from otherminds.partners import PARTNERS, make_partner, names_for

from players import played

GAME_OF = {
    "stag_hunt": "stag_hunt-8x8-4h1s-5b",
    "snowdrift": "snowdrift-4x4",
    "matrix": "matrix-ipd",
    "any": "stag_hunt-4x4-4h1s",
}
ALL = [(family, name) for family, names in PARTNERS.items() for name in names]
DRAWS = 4000


@pytest.mark.parametrize(("family", "name"), ALL)
def test_sampled_frequencies_match_the_stated_probabilities(family, name):
    game = make(GAME_OF[family])
    lineup = name if name == "random" else ",".join([name, *["random"] * (game.seats - 1)])
    policies = seats.resolve(game, lineup)
    _, play, _ = played(GAME_OF[family], lineup, 3)
    policy, memory, seen = policies[0].policy, play.memories[0], view(play.now, policies[0].seats)

    @jax.jit
    def draw(key):
        prepare_key, _ = jax.random.split(key)
        prepared = policy.prepare(seen, memory, prepare_key)
        action, _, extras = policy.act(seen, memory, key)
        return action, policy.probabilities(seen, prepared), extras

    actions, probabilities, extras = jax.vmap(draw)(jax.random.split(jax.random.key(1), DRAWS))
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(jax.nn.softmax(extras.logits), probabilities, atol=1e-6)
    assert (probabilities[:, ~np.asarray(seen.legal)] == 0).all()
    stated = np.asarray(probabilities, np.float64)
    surplus = (jax.nn.one_hot(actions, game.actions) - stated).sum(0)
    spread = np.sqrt((stated * (1 - stated)).sum(0))
    assert (np.abs(surplus) <= 5 * spread + 1e-3).all()


def distances(free: np.ndarray, targets: list[int]) -> np.ndarray:
    """Moves from every cell to the nearest target, by an ordinary breadth-first search."""
    steps = np.full(free.size, 10**6)
    edge = list(targets)
    steps[edge] = 0
    height, width = free.shape
    while edge:
        cell = edge.pop(0)
        row, column = divmod(cell, width)
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if 0 <= r < height and 0 <= c < width and free[r, c] and steps[r * width + c] > steps[cell] + 1:
                steps[r * width + c] = steps[cell] + 1
                edge.append(r * width + c)
    return steps


@pytest.mark.parametrize(("name", "prey", "hunt"), [("nearest_stag", "stag", 5), ("nearest_hare", "hare", 6)])
@pytest.mark.parametrize("game_id", ["stag_hunt-8x8-4h1s-5b", "stag_hunt-8x8-4h2s"])
def test_hunters_take_a_shortest_path_around_walls(game_id, name, prey, hunt):
    game = make(game_id)
    _, _, rows = played(game_id, f"{name},{name},random,random", 30, games=40, states=True)
    walked = hunted = wandered = 0
    for t in range(30):
        for lane in range(40):
            wall = rows.state.wall[t, lane].reshape(game.height, game.width)
            alive = [int(cell) for cell in getattr(rows.state, prey)[t, lane] if cell >= 0]
            for seat in (0, 1):
                if not rows.present[t, lane, seat]:
                    continue
                here, action = rows.state.position[t, lane, seat], rows.action[t, lane, seat]
                if not alive:
                    assert action < 4
                    wandered += 1
                    continue
                steps = distances(~wall, alive)
                if steps[here] == 0:
                    assert action == hunt
                    hunted += 1
                else:
                    there = here + (-game.width, game.width, -1, 1)[action]
                    assert steps[there] == steps[here] - 1
                    walked += 1
    assert min(walked, hunted) > 50
    assert wandered > 10 or (name, game_id) != ("nearest_stag", "stag_hunt-8x8-4h1s-5b")


def rows_of(game_id, lineup, steps, games=64):
    game, _, rows = played(game_id, lineup, steps, games, seed=4)
    return game, rows


def test_the_patient_wait_for_whoever_is_about_and_take_a_hare_in_the_end():
    """No hare is taken before step 9 while anybody else is there; beside those who walk at random that pays better."""
    game, rows = rows_of("stag_hunt-4x4-4h1s?horizon=14", "patient=9,random,random,random", 140, games=256)
    step = np.zeros(256, int)
    early = late = 0
    for t in range(len(rows.first)):
        step = np.where(rows.first[t], 0, step)
        hares = rows.present[t, :, 0] & (rows.action[t, :, 0] == 6)
        others = rows.present[t, :, 1:].any(-1)
        stag = rows.observation[t, :, 0, game.seats + 1].any((-2, -1))
        early += (hares & others & stag & (step < 9)).sum()
        late += (hares & (step >= 9)).sum()
        step += 1
    assert early == 0
    assert late > 50
    assert rows.reward[..., 0].sum() / rows.first.sum() > 1.2
    with pytest.raises(BadInput, match="expected a step"):
        rows_of("stag_hunt-4x4-4h1s", "patient=soon", 1)


def test_a_switcher_changes_its_goal_at_a_step():
    _, rows = rows_of("stag_hunt-8x8-4h1s", "switcher=hare-stag@4", 90)
    step = np.zeros(rows.first.shape[1], int)
    for t in range(rows.first.shape[0]):
        step = np.where(rows.first[t], 0, step)
        expected = np.where(step < 4, 1, 0)
        assert (rows.goal[t] == expected[:, None]).all()
        step += 1


def test_a_switcher_changes_its_goal_at_an_episode_of_the_meeting():
    _, rows = rows_of("stag_hunt-4x4-4h1s?horizon=3", "switcher=stag-hare@e2", 200, games=4)
    for lane in range(4):
        episode = -1
        for t in range(200):
            episode = 0 if rows.meeting[t, lane] else episode + int(rows.first[t, lane])
            assert (rows.goal[t, lane] == (0 if episode < 2 else 1)).all()


def test_the_stubborn_keep_their_goal_for_a_meeting():
    _, rows = rows_of("stag_hunt-4x4-4h1s?horizon=2", "stubborn=0.9", 120)
    for lane in range(64):
        meetings = np.cumsum(rows.meeting[:, lane])
        for meeting in np.unique(meetings):
            assert (rows.goal[meetings == meeting, lane] == rows.goal[meetings == meeting, lane][0]).all()
    share = rows.goal[rows.meeting].mean()
    assert 0.35 < share < 0.65
    fixed = rows_of("stag_hunt-4x4-4h1s", "stubborn=0.9:hare", 4)[1]
    assert (fixed.goal == 1).all()


def test_goals_stated_are_goals_reached():
    """Of the hunters that leave, each leaves with the prey it said it was after."""
    for lineup in ("nearest_stag", "nearest_hare", "stubborn=1"):
        _, rows = rows_of("stag_hunt-8x8-4h1s", lineup, 35)
        reached = rows.goal_reached >= 0
        assert reached.any()
        assert (rows.goal_reached[reached] == rows.goal[reached]).all()


def test_a_driver_clears_the_drift_it_said():
    game, rows = rows_of("snowdrift-6x6", "nearest_drift", 25)
    cleared = (rows.goal_reached >= 0) & (rows.goal_reached < game.cells)
    assert cleared.any()
    assert (rows.goal_reached[cleared] == rows.goal[cleared]).all()


@pytest.mark.parametrize(
    ("lineup", "actions"),  # of seat 0 and seat 1 over the first steps
    [
        ("always_d,tit_for_tat", [(1, 0), (1, 1), (1, 1)]),
        ("always_c,always_d", [(0, 1), (0, 1), (0, 1)]),
        # Win-stay-lose-shift: C earns 0 against D, so it shifts to D; D earns 1 of a mean of 2.25, so it shifts back.
        ("win_stay_lose_shift,always_d", [(0, 1), (1, 1), (0, 1), (1, 1)]),
        ("grim,always_d", [(0, 1), (1, 1), (1, 1)]),
        ("grim,tit_for_tat", [(0, 0), (0, 0), (0, 0)]),
    ],
)
def test_known_lines_of_play(lineup, actions):
    _, rows = rows_of("matrix-ipd", lineup, len(actions), games=1)
    np.testing.assert_array_equal(rows.action[:, 0], actions)


def test_grim_forgives_with_a_new_episode():
    _, rows = rows_of("matrix-ipd?horizon=3", "grim,random", 60, games=8)
    assert (rows.action[..., 0][rows.first] == 0).all()
    assert (rows.action[..., 0] == 1).any()


def test_without_sight_of_prey_a_hunter_wanders():
    game = make("stag_hunt-8x8-4h1s?view=0")
    policy = make_partner("nearest_stag", game, 4)
    now = jax.tree.map(jnp.asarray, played(game.id, "random", 1, games=16)[2].last)
    probabilities = policy.probabilities(view(now, (0, 1, 2, 3)), policy.initial_memory())
    blind = np.asarray(now.present & ~now.legal[..., 5])
    moves = np.asarray(now.legal)[blind] & (np.arange(7) < 4)
    assert blind.sum() > 32
    np.testing.assert_allclose(np.asarray(probabilities)[blind], moves / moves.sum(-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("nearest_stga", "did you mean nearest_stag"),
        ("nearest_stag=3", "takes no argument"),
        ("switcher=soon", "switcher=stag-hare@5"),
        ("switcher=stag-moose@5", "did you mean|choose from hare, stag"),
        ("stubborn=2", "a probability"),
        ("stubborn=often", "a probability"),
        ("tit_for_tat", "no partner 'tit_for_tat'"),
    ],
)
def test_bad_partners_are_refused(entry, hint):
    with pytest.raises(BadInput, match=hint):
        make_partner(entry, make("stag_hunt-4x4-4h1s"))


def test_every_family_has_the_random_partner():
    assert all("random" in names_for(family) for family in (*PARTNERS, "a family nobody wrote scripts for"))


MINDED = ("random", "nearest_stag", "switcher=stag-hare@3", "switcher=hare-stag@e1", "stubborn=0.7", "stubborn=0.6:hare")


@pytest.mark.parametrize("entry", MINDED)
def test_one_of_its_minds_is_what_it_had_in_mind(entry):
    """Exact beliefs are made of minds: among them must be the one that played, in every row."""
    options = Collect(Path("x.npz"), game="stag_hunt-4x4-4h1s", seats=f"{entry},random,random,random", episodes=40, meeting=2)
    data = gather(options)
    step, episode = clocks(data)
    seen = [jnp.asarray(x) for x in (data.rows.observation[:, 0], data.rows.legal[:, 0], step, episode)]
    there = data.rows.present[:, 0]
    agree = []
    for mind in make_partner(entry, data.game).minds():
        same = np.abs(np.asarray(mind.probabilities(*seen)) - data.rows.probabilities[:, 0]).max(-1) < 1e-5
        agree.append(same & (np.asarray(mind.goal(*seen[2:])) == data.rows.goal[:, 0]))
    assert np.any(agree, 0)[there].all()
    assert sum(mind.share for mind in make_partner(entry, data.game).minds()) == pytest.approx(1)


def test_a_script_with_a_longer_memory_has_no_minds_of_this_kind():
    with pytest.raises(BadInput, match="Grim does depends on more"):
        make_partner("grim", make("matrix-ipd")).minds()
