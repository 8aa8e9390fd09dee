"""What a HOP refuses before anything is compiled, with what would work instead."""

import math

from otherminds import planning
from otherminds.config import HOP, Sizes, require
from otherminds.games.base import Game
from otherminds.learners.base import check_network, check_shares, unit_length


def check(config: HOP, sizes: Sizes, game: Game) -> None:
    """Refuse settings that cannot work, before anything is compiled, with what would."""
    name, parts = config.preset, config.parts
    check_network(config, sizes, "hop", game)
    check_shares("hop", config, ("discount", "trace", "ambition", "practice", "modest_discount", "counted", "switching"))
    check_search(config)
    require(
        not game.continuous,
        f"{name} plans with discrete actions, and {game.id} has continuous ones: --seats ppo",
    )
    require(game.seats > 1, f"{name} models partners, and {game.id} has one seat: --seats ppo")
    require(
        parts.goals != "manual" or bool(game.goals),
        f"{name} needs goals given by hand, and {game.id} names none: --seats hop_plus",
    )
    if parts.model == "simulator":
        instead = {"hop": "hop_plus", "direct_om": "hop_plus_no_goal", "hop_plus_no_model": "hop_plus"}[name]
        require(not game.on_host, f"{name} searches in the rules, and {game.id} is stepped on the host: --seats {instead}")
        require(
            planning.simulates(game),
            f"{name} searches in the rules, and an observation of {game.id} does not tell the state: --seats {instead}",
        )
    require(config.hidden != (), "--hop.hidden is empty, expected at least one layer: --hop.hidden 64 64")
    require(config.search_weight >= 0, f"--hop.search-weight is {config.search_weight}, expected 0 or a positive number: 0.5")
    require(config.stakes is None or config.stakes > 0, f"--hop.stakes is {config.stakes}, expected a positive number: 0.05")
    check_extras(config, sizes, game)
    for option in ("foresight_games", "foresight_batch", "model_rows"):
        number, spelled = getattr(config, option), option.replace("_", "-")
        require(number >= 1, f"--hop.{spelled} is {number}, expected a positive number")


def check_extras(config: HOP, sizes: Sizes, game: Game) -> None:
    """What is learned from beside what was played and earned."""
    share, parts = config.imagined, config.parts
    require(0 <= share < 1, f"--hop.imagined-fraction is {share}, expected 0 or a number below 1: 0.2")
    if share:
        require(parts.model != "none", f"{config.preset} has no world to imagine anything in: --hop.imagined-fraction 0")
        require(config.core == "none", "what is imagined has no memory: --hop.core none, or --hop.imagined-fraction 0")
        require(config.imagined_steps >= 1, f"--hop.imagined-steps is {config.imagined_steps}, expected at least 1: 5")
        roots = imagined_units(config, sizes) * unit_length(config, sizes) // imagined_length(config, sizes)
        require(
            roots <= sizes.parallel * sizes.rollout,
            f"--hop.imagined-fraction {share} goes on from {roots} moments, and an update has {sizes.parallel * sizes.rollout}: "
            "--hop.imagined-fraction 0.5",
        )
        require(
            roots > 0 or config.imagined_fraction is None,
            f"--hop.imagined-fraction {share}: so little cannot be shared by --minibatches {sizes.minibatches}: 0.5",
        )
    if config.ranked_reward is not None:
        name, rank = config.preset, config.ranked_reward
        require(0 < rank < 1, f"--hop.ranked-reward is {rank}, expected a share of the episodes: 0.25")
        require(not parts.search and not share, f"{name} adds up rewards as they are where it plans: --seats omg, or no_goal")
        require(not game.truncates, f"episodes of {game.id} are cut off, and have no end to be ranked by: no --hop.ranked-reward")
    require(config.value_target != "search" or parts.search, f"{config.preset} does not search: --hop.value-target td_lambda")


def check_search(config: HOP) -> None:
    search = config.search
    for option in ("simulations", "samples", "play_simulations", "play_samples", "considered"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(number >= 1, f"--hop.search.{spelled} is {number}, expected at least 1: --hop.search.{spelled} 1")
    for option in ("share", "capacity", "play_share", "begin"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(0 <= number <= 1, f"--hop.search.{spelled} is {number}, expected a number from 0 to 1")
    require(search.capacity > 0, "--hop.search.capacity is 0, expected a share of the games: --hop.search.capacity 0.6")
    for option in ("sharpness", "prior", "gumbel_scale", "exploration"):
        number, spelled = getattr(search, option), option.replace("_", "-")
        require(0 <= number < math.inf, f"--hop.search.{spelled} is {number}, expected 0 or a positive number")
    require(math.isfinite(search.optimism), f"--hop.search.optimism is {search.optimism}, expected a number: 0")
    numbers = config.parts.goals == "learned" and config.goals.kind == "vae"
    require(
        not search.optimism or (config.parts.goals != "none" and not numbers),
        "--hop.search.optimism is about goals that are codes: --hop.search.optimism 0",
    )


def imagined_units(config: HOP, sizes: Sizes) -> int:
    """How many units of an update are imagined, beside those that were played: as many as minibatches can share."""
    played = sizes.parallel * sizes.rollout // unit_length(config, sizes)
    return round(played * config.imagined / (1 - config.imagined) / sizes.minibatches) * sizes.minibatches


def imagined_length(config: HOP, sizes: Sizes) -> int:
    """How far what is imagined goes on: as far as is asked for and divides a unit."""
    unit = unit_length(config, sizes)
    return max(steps for steps in range(1, config.imagined_steps + 1) if unit % steps == 0)
