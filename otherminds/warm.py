"""Starting from fits: what was learned of partners and of the world alone, taken over into a run."""

import re
from dataclasses import fields, replace
from typing import Any

from otherminds import fit
from otherminds.config import HOP, PRESETS, Fit, PartnerNetwork, Train, require
from otherminds.games import make


def taken_over(config: Train) -> Train:
    """The same run with the networks that its fits have. How fast they go on learning stays as the run says."""
    hop, taken = config.hop, set()
    for name in hop.start:
        fitted = fit.load(name)
        module = fitted.options.module
        require(module not in taken, f"{name} is a second fit of {module}: start from one")
        taken.add(module)
        serves = [learner for learner in _presets(config) if module in startable(config.of(learner))]
        require(
            bool(serves), f"{name} is a fit of {module}, and nobody in --seats {config.seats} has such a part: {_hint(module)}"
        )
        require(
            fitted.game.id == make(config.game).id,
            f"{name} was fitted on {fitted.game.id}, and this is {config.game}: fit one on games of it",
        )
        hop = _with_networks(hop, fitted.options, name)
    return replace(config, hop=hop)


def _presets(config: Train) -> list[str]:
    """The learners of HOP that are named in the seats."""
    return [name for name in PRESETS if name in re.split(r"[,+~]", config.seats)]


def startable(hop: HOP) -> set[str]:
    """Modules that a learner can start from."""
    partners = {"none": {"opponent_model"} if hop.parts.search else set(), "manual": {"goals"}, "learned": {"goals"}}
    return partners[hop.parts.goals] | ({"world_model"} if hop.parts.model == "learned" else set())


def _hint(module: str) -> str:
    return {
        "opponent_model": "presets with goals start from a fit of goals, others are direct_om and hop_plus_no_goal",
        "goals": "hop, or a hop_plus with goals",
        "world_model": "a hop_plus with a learned model",
    }[module]


def _with_networks(hop: HOP, options: Fit, name: str) -> HOP:
    if options.module == "world_model":
        target = options.world_model.reward_target
        require(
            target == "r", f"{name} says {target} instead of rewards, and plans add rewards up: --world_model.reward-target r"
        )
        given = hop.world_model
        return replace(hop, world_model=replace(options.world_model, learning_rate=given.learning_rate, batch=given.batch))
    if options.module == "goals":
        return replace(hop, goals=replace(options.goals, learning_rate=hop.goals.learning_rate, batch=hop.goals.batch))
    told = options.opponent_model.goal or options.opponent_model.identity
    require(
        not told,
        f"{name} is told goals or names, and who starts from it has none to tell: fit with --opponent_model.goal False "
        "--opponent_model.identity False",
    )
    network = {field.name: getattr(options.opponent_model, field.name) for field in fields(PartnerNetwork)}
    return replace(hop, goals=replace(hop.goals, acts=PartnerNetwork(**network), size=0))  # it is told nothing


def modules(config: Train, seed: int) -> dict[str, Any]:
    """What a seed starts from, by name of the module: fits of several seeds are dealt out in turn."""
    loaded = {(fitted := fit.load(name)).options.module: fitted.modules for name in config.hop.start}
    return {module: found[(seed - config.seed) % len(found)] for module, found in loaded.items()}
