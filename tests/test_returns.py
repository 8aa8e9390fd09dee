"""Returns and advantages, on numbers worked by hand. Discount and trace are 0.5 throughout."""

import jax.numpy as jnp
import numpy as np

from otherminds.returns import episode_sums, lambda_returns, ranked, value_of_absent


def column(*numbers, dtype=float):
    """One game, one seat, some steps."""
    return jnp.array(numbers, dtype).reshape(-1, 1, 1)


def one_seat(reward, value, last_value, terminated=(0, 0), truncated=(0, 0), present=(1, 1), last_present=True, final=None):
    return lambda_returns(
        column(*reward),
        column(*value),
        jnp.array([[last_value]], float),
        None if final is None else column(*final),
        column(*present, dtype=bool),
        jnp.array([[last_present]]),
        column(*terminated, dtype=bool),
        jnp.array(truncated, bool).reshape(-1, 1),
        discount=0.5,
        trace=0.5,
    )


def test_in_the_middle_of_an_episode():
    # G1 = 2 + 0.5 * 3 = 3.5; G0 = 1 + 0.5 * (0.5 * 1 + 0.5 * 3.5) = 2.125.
    # As GAE: d1 = 2 + 0.5 * 3 - 1 = 2.5; d0 = 1 + 0.5 * 1 - 0.5 = 1; A0 = 1 + 0.25 * 2.5 = 1.625.
    found = one_seat(reward=(1, 2), value=(0.5, 1), last_value=3)
    np.testing.assert_allclose(found.returns.ravel(), [2.125, 3.5])
    np.testing.assert_allclose(found.advantages.ravel(), [1.625, 2.5])


def test_nothing_follows_a_true_end():
    found = one_seat(reward=(1, 2), value=(0.5, 1), last_value=3, terminated=(1, 0))
    np.testing.assert_allclose(found.returns.ravel(), [1.0, 3.5])


def test_what_was_cut_off_would_have_gone_on():
    # The value of what row 0 led to is 4: G0 = 1 + 0.5 * 4 = 3. Row 1 belongs to another episode.
    found = one_seat(reward=(1, 2), value=(0.5, 1), last_value=3, truncated=(1, 0), final=(4, 7))
    np.testing.assert_allclose(found.returns.ravel(), [3.0, 3.5])


def test_a_fallen_unit_earns_with_its_team():
    """It is absent in row 1, where nobody trains a value; the 5 its team earns there still belongs to row 0."""
    # G1 = 5; G0 = 0 + 0.5 * 5 = 2.5, and the 99 is looked at by nobody.
    found = one_seat(reward=(0, 5), value=(0.5, 99), last_value=99, present=(1, 0), last_present=False, terminated=(0, 1))
    np.testing.assert_allclose(found.returns.ravel()[0], 2.5)
    np.testing.assert_allclose(found.advantages.ravel()[0], 2.0)


def test_the_team_stands_in_for_whoever_is_absent_at_the_edge():
    # Seat 0 is absent at the end of the rollout, seats 1 and 2 are worth 2 and 4: their mean 3 stands in. G0 = 1 + 0.5 * 3.
    found = lambda_returns(
        jnp.array([[[1.0, 0, 0]]]),
        jnp.zeros((1, 1, 3)),
        jnp.array([[99.0, 2, 4]]),
        None,
        jnp.ones((1, 1, 3), bool),
        jnp.array([[False, True, True]]),
        jnp.zeros((1, 1, 3), bool),
        jnp.zeros((1, 1), bool),
        discount=0.5,
        trace=0.5,
    )
    np.testing.assert_allclose(found.returns[0, 0], [2.5, 1.0, 2.0])
    np.testing.assert_allclose(value_of_absent(jnp.array([5.0, 7]), jnp.array([False, False])), [0, 0])


def test_rewards_add_up_over_an_episode_and_across_rollouts():
    reward = column(1, 2, 3, 4)
    sums, carried = episode_sums(reward, jnp.array([[0], [1], [0], [0]], bool), jnp.array([[10.0]]))
    np.testing.assert_allclose(sums.ravel(), [11, 13, 3, 7])
    np.testing.assert_allclose(carried, [[7.0]])


def test_rewards_by_rank_are_paid_at_the_end_to_the_best_share():
    # Four games of one step. Of 1, 5, 5, 2 half are among the best: the two 5. The last seat's 9 does not count, but is paid.
    total = jnp.array([[[1.0], [5.0], [5.0], [2.0], [9.0]]])
    over = jnp.ones((1, 5, 1), bool)
    counts = over.at[0, 4].set(False)
    np.testing.assert_array_equal(ranked(total, over, counts, 0.5).ravel(), [-1, 1, 1, -1, 1])
    np.testing.assert_array_equal(ranked(total, over.at[0, 0].set(False), counts, 0.5).ravel(), [0, 1, 1, -1, 1])
