"""What a user can set and how we refuse what cannot be. Imports nothing heavy: the command line reads this file first."""

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro


class BadInput(ValueError):
    """Input we refuse. The message is one line: what was wrong, what was expected, what to type instead."""


def require(condition: bool, message: str) -> None:
    """Refuse the input with `message` unless `condition` holds."""
    if not condition:
        raise BadInput(message)


def closest(name: str, choices: Iterable[str], most: int = 3) -> str:
    """The end of an error message: the choices nearest to `name`, or all of them where none is near."""
    choices = sorted(choices)
    near = difflib.get_close_matches(name, choices, n=most, cutoff=0.4)
    return "did you mean " + " or ".join(near) + "?" if near else "choose from " + ", ".join(choices)


def parse_id(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name?option=value&option=value`; values are read as Python literals, else kept as text.

    A value may be a list without brackets: `strengths=1,1,2,1`.
    """
    name, _, query = text.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        require(bool(equals and key and value), f"option '{part}' in '{text}' is not of the form option=value")
        require(key not in options, f"option '{key}' is given twice in '{text}'")
        options[key] = _literal(value)
    return name, options


def _literal(value: str) -> Any:
    if value.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def as_type(value: Any, wanted: Any, owner: str, option: str) -> Any:
    """An option's value as the type its field states: whole numbers serve as numbers, anything else must fit."""
    if isinstance(wanted, UnionType) or get_origin(wanted) is Union:
        kinds = get_args(wanted)
        if value is None and type(None) in kinds:
            return None
        wanted = next(kind for kind in kinds if kind is not type(None))
    if get_origin(wanted) is Literal:
        choices = get_args(wanted)
        value = "none" if value is None and "none" in choices else value
        require(value in choices, f"{owner}: {option} is {value!r}: {closest(str(value), choices)}")
        return value
    if get_origin(wanted) is tuple:
        require(
            isinstance(value, tuple | list), f"{owner}: {option} is {value!r}, expected numbers with commas between: {option}=1,2"
        )
        return tuple(as_type(item, get_args(wanted)[0], owner, option) for item in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if wanted is Path and isinstance(value, str):
        return Path(value)
    fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
    name = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}[wanted]
    require(fits, f"{owner}: {option} is {value!r}, expected {name}")
    return value


def check_options(options: Mapping[str, Any], allowed: Iterable[str], owner: str) -> None:
    """Refuse options that `owner` does not have, naming the nearest one it has."""
    allowed = list(allowed)
    for key in options:
        if key not in allowed:
            hint = closest(key, allowed) if allowed else "it takes no options"
            raise BadInput(f"{owner} has no option '{key}': {hint}")


def values_of(text: str) -> list[Any]:
    """Values with commas between: numbers, words, or lists in brackets, (64,64),(128,128)."""
    try:
        return list(ast.literal_eval(f"({text},)"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [_literal(word) for word in text.split(",")]


def with_option(settings: Any, option: str, value: Any, owner: str = "train") -> Any:
    """The same settings with one option changed, by its name: `steps`, `hop.search.simulations`. Refused if it does not fit."""
    name, _, rest = option.replace("-", "_").partition(".")
    types = get_type_hints(type(settings))
    check_options({name: value}, types, owner)
    held = getattr(settings, name)
    require(is_dataclass(held) == bool(rest), f"{owner}: '{option}' is no option: expected one like hop.search.simulations")
    new = with_option(held, rest, value, f"{owner}: {name}") if rest else as_type(value, types[name], owner, name)
    return replace(settings, **{name: new})


Flag = Annotated[bool, tyro.conf.FlagConversionOff]
"""True or False, written out: `--ppo.share True`. Only switches of a command stand bare."""


@dataclass(frozen=True)
class Network:
    """What the networks of a learner look like."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each layer."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    channels: tuple[int, ...] = ()
    """Channels of 3x3 convolutions over planes, before the layers; none: the planes are flattened."""
    torso: Literal["flat", "centred"] = "flat"
    """On boards: look at the board as it is, or as it lies around oneself, so that what is learned of a place holds wherever one
    stands. Elsewhere, and behind convolutions, as it is."""
    core: Literal["none", "gru", "lstm"] = "none"
    """Memory from step to step."""
    core_size: int = 64
    """Units of the core."""
    memory: Literal["episode", "lasting"] = "episode"
    """Whether a core forgets when an episode ends, or only when partners change."""
    segment: int = 20
    """Steps through which a core is trained backwards; as long as --rollout or longer: all of them."""
    share: Flag = False
    """One set of parameters for all seats of the learner instead of one for each."""


@dataclass(frozen=True)
class PolicyGradient(Network):
    """What learners that go by clipped policy gradients have in common."""

    learning_rate: float = 1e-3
    learning_rate_final: float | None = 1e-4
    """Reached in a straight line at the end of the run; none: constant."""
    entropy: float = 0.01
    """Weight of the entropy."""
    entropy_final: float | None = 0.0
    """Reached in a straight line at the end of the run; none: constant."""
    discount: float = 0.99
    trace: float = 0.95
    """λ of the returns: 0 trusts the value, 1 the rewards."""
    clip: float = 0.2
    """How far the probability ratio may move before its gradient stops."""
    value_clip: float | None = 0.2
    """The same for the normalised value; none: off."""
    value_weight: float = 0.5
    normalise_value: Flag = True
    """Let the critic predict returns shifted and scaled to mean 0 and variance 1."""
    max_gradient: float = 0.5
    """Norm to which each seat's gradient is cut."""


@dataclass(frozen=True)
class PPO(PolicyGradient):
    """Independent PPO: each seat learns for itself."""

    separate_critic: Flag = False
    """A torso (and core) of its own for the value."""
    prosocial: float = 0.0
    """Share of the mean over all seats in what a seat is rewarded with: 0 its own reward alone, 1 the mean alone."""
    action_noise: float = 0.0
    """Chance of playing a random legal action while training."""


@dataclass(frozen=True)
class MAPPO(PolicyGradient):
    """PPO with a central critic: the value of a seat reads the observations of all seats of the learner."""

    critic_hidden: tuple[int, ...] = (128, 128)
    """Units of each layer of the critic."""


@dataclass(frozen=True)
class PartnerNetwork:
    """What foresees a partner's action from its view and what is told beside it."""

    torso: Literal["cells", "centred"] = "cells"
    """On boards: carry what lies there from cell to cell, good around walls; or look at the board as it lies around the partner,
    ten times faster."""
    channels: int = 16
    """Of `cells`: features of each."""
    repeats: int = 6
    """Of `cells`: how far what lies there is carried, less one."""
    others: Literal["together", "apart"] = "together"
    """Of `centred`: whether other players are all one, or each is seen as itself: who learned beside them may go by that."""
    hidden: tuple[int, ...] = (64,)
    """Units of the layer behind that; elsewhere, of all layers."""
    goal_input: Literal["concat", "film", "generated"] = "concat"
    """How what is told beside the view comes in."""


@dataclass(frozen=True)
class OpponentModel(PartnerNetwork):
    """What a partner will do, given its view, its goal and, if known, who it is."""

    identity: Flag = False
    """Tell who the partner is."""
    goal: Flag = True
    """Tell what the partner is after."""
    learning_rate: float = 4e-3
    """At the beginning; it falls to 0 along half a cosine."""
    batch: int = 256
    """Steps of partners in one update."""


@dataclass(frozen=True)
class Goals:
    """What partners are after: given by hand, or learned as codes of what they did later, good for foreseeing them before it."""

    kind: Literal["vq", "vae", "manual"] = "vq"
    """A code out of a book, a few numbers, or the goals that the game names."""
    encodes: Literal["trajectory", "state", "state+time+reward"] = "trajectory"
    """What a code is read from in hindsight: all later steps, one later state, or that with when it came and what it paid."""
    trained_by: Literal["action", "reconstruction", "both"] = "action"
    """What makes a code good: foreseeing the partner's actions, drawing the later state, or both."""
    codes: int = 8
    """Of `vq`: how many."""
    size: int = 8
    """How many numbers a code has."""
    steps: int = 12
    """Of each episode, so many steps are used, from its beginning."""
    horizon: int = 10
    """How many steps ahead the later state lies at most."""
    choice: Literal["optimistic", "conservative", "last"] = "optimistic"
    """Which of those states: worth most or least to the one who looks, or the last."""
    discount: float = 0.95
    """Of what the one who looks will earn, which tells what a state is worth."""
    information: float = 1.0
    """Of `vae`: what a code costs for each nat that it says beyond its prior; one nat of foreseen action is worth 1."""
    channels: int = 16
    """Of `acts.torso` cells: features of each, of what reads trajectories."""
    repeats: int = 2
    """Of `acts.torso` cells: how far what lies there is carried, less one."""
    hidden: tuple[int, ...] = (64,)
    """Units of each layer of what reads trajectories, elsewhere."""
    features: int = 32
    """Numbers that are read from a view, and that are remembered of views."""
    acts: PartnerNetwork = field(default_factory=lambda: PartnerNetwork(torso="centred", goal_input="film"))
    """The opponent model that reads the code, behind its view of the board."""
    learning_rate: float = 4e-3
    """At the beginning; it falls to 0 along half a cosine."""
    batch: int = 64
    """Episodes of partners in one update."""


@dataclass(frozen=True)
class WorldModel:
    """What a step leads to: the next observation, the reward and whether it is over, given the joint action."""

    kind: Literal["direct", "latent"] = "direct"
    """Several steps ahead, go on from what was foreseen, or from the hidden state behind it."""
    channels: int = 32
    """On boards: features of each cell."""
    repeats: int = 0
    """On boards: how far a cell looks around before actions are taken, less one."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each layer where there is no board."""
    action_input: Literal["concat", "film", "generated"] = "concat"
    """How the joint action comes in."""
    reward_target: Literal["none", "r", "q", "r+v"] = "r"
    """What the reward head learns: nothing, the reward, the return, or the reward and the discounted value of what follows."""
    discount: float = 0.95
    """γ of `q` and `r+v`."""
    plane_weights: tuple[float, ...] = ()
    """Weights of the planes (or entries) of an observation in the loss; none: all 1."""
    consistency: float = 0.0
    """Of `latent`: weight of the distance between the hidden state predicted and that of what really followed."""
    contrastive: float = 0.0
    """Of `latent`: weight of telling what really followed from what followed elsewhere."""
    reconstruction: float = 1.0
    """Of `latent`: weight of drawing the present observation from its own hidden state."""
    reward_weight: float = 1.0
    end_weight: float = 1.0
    learning_rate: float = 4e-3
    """At the beginning; it falls to 0 along half a cosine."""
    batch: int = 128
    """Steps in one update."""


@dataclass(frozen=True)
class Search:
    """How the next moves are searched before one is played."""

    kind: Literal["gumbel", "puct"] = "gumbel"
    """How branches are chosen: Gumbel MuZero's way, which suits few simulations, or by visits and prior (PUCT)."""
    simulations: int = 16
    """Of each tree, while training."""
    samples: int = 1
    """Joint goals that are drawn from the belief, each with a tree of its own, while training."""
    share: float = 0.125
    """Share of the steps at which the games are searched while training, all at once."""
    capacity: float = 0.6
    """In which share of the games a seat can search at once: seats leave, and room is made for so many. The others play the
    policy."""
    play_simulations: int = 16
    """Of each tree, at play."""
    play_samples: int = 2
    """Joint goals, at play."""
    play_share: float = 1.0
    """Share of the games that are searched at play; 0 plays without search."""
    begin: float = 0.2
    """Share of the run that is over before the search begins: until then values are worth nothing."""
    sharpness: float = 2.0
    """β: odds of an action are exp(β Q), with Q in units of what is at stake (--hop.stakes)."""
    prior: float = 1.0
    """Weight of the policy's own logits beside β Q; 0: by Q alone."""
    considered: int = 7
    """Of `gumbel`: how many actions at the root are looked at."""
    gumbel_scale: float = 1.0
    """Of `gumbel`: noise with which these are chosen."""
    exploration: float = 1.25
    """Of `puct`: weight of the prior beside what was found."""
    optimism: float = 0.0
    """κ: goals are drawn by b(g) exp(κ V(g)), so that those which would be good for us are tried more often; 0: by the belief."""


@dataclass(frozen=True)
class Preset:
    """What a name among the learners of HOP stands for."""

    goals: Literal["manual", "learned", "none"]
    model: Literal["simulator", "learned", "none"]
    search: bool
    intra: bool = True
    inter: bool = True
    numbers: bool = False  # goals are numbers whatever the settings say
    says: str = ""


PRESETS = {
    "hop": Preset("manual", "simulator", True, says="goals given by the game, search on its rules"),
    "direct_om": Preset("none", "simulator", True, says="an opponent model without goals, search on the rules"),
    "hop_plus": Preset("learned", "learned", True, says="nothing given by hand: goals and the world are learned"),
    "hop_plus_no_goal": Preset("none", "learned", True, says="what goals bring is measured against this"),
    "hop_plus_no_model": Preset("learned", "simulator", True, says="learned goals, search on the rules"),
    "hop_plus_no_search": Preset("learned", "learned", False, says="a policy that reads inferred goals"),
    "hop_plus_no_inter": Preset("learned", "learned", True, inter=False, says="forgets partners between episodes"),
    "hop_plus_no_intra": Preset("learned", "learned", True, intra=False, says="learns of partners between episodes alone"),
    "omg": Preset("learned", "none", False, inter=False, numbers=True, says="subgoals as numbers, inferred by a network"),
    "no_goal": Preset("none", "none", False, says="the PPO underneath"),
}
"""Learners that are one program with different parts switched on; all read the settings --hop."""


@dataclass(frozen=True)
class HOP(PolicyGradient):
    """HOP and HOP+: infer what the others are after, foresee what they do, and plan. Serves all its presets."""

    preset: tyro.conf.Suppress[str] = "hop_plus"
    """Which of the presets; set by the name in --seats."""
    torso: Literal["flat", "centred"] = "centred"
    """As for other learners, who look at the board as it is unless they are told to."""
    discount: float = 0.995
    """Nearer to 1 than that of other learners: what takes patience, as waiting for somebody who walks at random, is worth it."""
    actor: Literal["plain", "generated"] = "plain"
    """Whether what is believed of the others stands beside what is seen, or chooses the weights of a layer."""
    value_target: Literal["td_lambda", "return", "search"] = "td_lambda"
    """What values learn: λ-returns, whole returns (λ = 1), or λ-returns that go on from what a search found, where there was
    one."""
    search_weight: float = 0.5
    """Weight of learning from the search, in moves that were searched, beside learning from returns in all others."""
    imagined_fraction: float | None = None
    """Share of imagined steps in what the policy learns from: played on from real moments in the world it plans in. None: 0.2
    where a learned model serves nothing else and the policy has no core, else 0."""
    imagined_steps: int = 5
    """How far what is imagined goes on at most; it must divide the steps of a game that stay together in an update."""
    ranked_reward: float | None = None
    """Of learners without search: an episode that earned no less than the last of this share of the best of its update pays 1,
    any other -1, instead of what it earned; none: off."""
    trajectories: Literal["all", "rewarded"] = "all"
    """Learn of partners from all that they do, or from what led to a reward."""
    stakes: float | None = 0.05
    """Advantages, and what a search finds, are measured by what is at stake at a moment: how much better or worse than expected
    it turns out there, as a head of the network foresees it, and at least this much of how far returns spread. None: the same
    measure everywhere."""
    ambition: float = 1.0
    """How much less a reward counts that is at most half of the largest, at the beginning; it falls to nothing until the search
    begins. 0: all count from the start."""
    practice: float = 0.75
    """Share of the parallel games in which some seats are played by other selves: as they were earlier in the run, or modest
    ones, to whom large rewards are worth nothing. So a seat meets partners of many kinds. Only where a learner has several
    seats."""
    modest_discount: float = 0.8
    """What a modest self makes of the future: it is in a hurry, and goes for what is near."""
    counted: float = 0.995
    """What is kept, from episode to episode, of how often a partner was after each goal."""
    switching: float = 0.02
    """Chance that a partner changes its goal between two steps, as far as beliefs know."""
    goals: Goals = field(
        default_factory=lambda: Goals(
            size=16, learning_rate=2e-3, acts=PartnerNetwork(torso="centred", others="apart", goal_input="film")
        )
    )
    """Of learned goals, and of what foresees partners."""
    world_model: WorldModel = field(default_factory=lambda: WorldModel(channels=16, learning_rate=2e-3, batch=64))
    foresight_games: int = 128
    """Games of an update from which opponent model and goals learn."""
    foresight_batch: int = 4
    """Games of each of their steps, or more, so that all steps have as many."""
    model_rows: int = 512
    """Steps of each seat in an update from which the world model learns, in parts of `world_model.batch`."""
    search: Search = field(default_factory=Search)

    start: tuple[str, ...] = ()
    """Fits of goals, opponent model or world model to start from: names under runs/, or paths. Their networks are taken over as
    they are."""

    @property
    def parts(self) -> Preset:
        return PRESETS[self.preset]

    @property
    def imagined(self) -> float:
        """The share of imagined steps in what the policy learns from."""
        idle = self.parts.model == "learned" and not self.parts.search and self.core == "none"
        return (0.2 if idle else 0.0) if self.imagined_fraction is None else self.imagined_fraction


@dataclass(frozen=True)
class Sizes:
    """How much data an update has and how often it is gone through; common to all learners."""

    parallel: int
    rollout: int
    epochs: int
    minibatches: int
    updates: int  # in the whole run, for schedules


@dataclass(frozen=True)
class Demo:
    """The main job in minutes: HOP+ learns in self-play to hunt together, then meets strangers; a replay is left behind."""

    name: str = "demo"
    """A name under runs/, or a path: the folder for the results."""
    episodes: int = 256
    """Episodes of self-play that are measured: every move of theirs is searched."""
    steps: int = 800_000
    """Game steps the learners train."""
    meetings: int = 16
    """Meetings with each set of strangers, of 2,400 steps."""
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class List:
    """Show the games, the partners and the learners, one line each."""

    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Watch:
    """Watch one episode: in the terminal, as PNG frames, as a GIF."""

    game: str = "stag_hunt-4x4-4h1s"
    """Id of the game, with options behind it: snowdrift-4x4?horizon=50."""
    seats: str = "random"
    """Who plays: one name for all seats, or one for each with commas between."""
    seed: int = 0
    gif: Path | None = None
    """Write the episode as a GIF here."""
    png: Path | None = None
    """Write the frames as PNG files into this folder."""
    cell: int = 64
    """Width of a cell in pixels."""
    delay: float = 0.4
    """Seconds a frame."""
    quiet: bool = False
    """Do not show the episode in the terminal."""


@dataclass(frozen=True)
class Train:
    """Train learners in a game, beside scripted and frozen partners if you like."""

    game: str = "stag_hunt-4x4-4h1s"
    """Id of the game, with options behind it: snowdrift-4x4?horizon=50."""
    seats: str = "ppo"
    """Who plays: one entry for all seats, or one for each with commas between. An entry is a learner (ppo), a script
    (stubborn=0.7), a pool (nearest_stag+nearest_hare), a schedule (nearest_stag~200000~ppo) or a frozen policy
    (run:NAME#2@STEP:SEED)."""
    name: str | None = None
    """A name under runs/, or a path: the folder of the run. Made of seats and game if none is given."""
    steps: int = 2_000_000
    """Game steps per seed, rounded up to whole updates."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """How many seeds are trained at once."""
    parallel: int = 128
    """Parallel games per seed."""
    rollout: int = 20
    """Steps of every game between two updates."""
    epochs: int = 4
    """How often an update goes through its data."""
    minibatches: int = 4
    """Into how many parts the data are cut for it."""
    evaluate_every: int = 0
    """Game steps per seed between evaluations while training; 0: none."""
    evaluate_episodes: int = 32
    """Episodes of each such evaluation."""
    keep: int = 3
    """Newest checkpoints to keep, beside the one with the best reward."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints."""
    workers: int = 0
    """Processes for games that are stepped on the host (pettingzoo:...)."""
    tensorboard: Flag = True
    """Write curves for TensorBoard, one per seed and seat."""
    wandb: str | None = None
    """Name of a project on Weights & Biases to log to (needs the package wandb)."""
    ppo: PPO = field(default_factory=PPO)
    mappo: MAPPO = field(default_factory=MAPPO)
    hop: HOP = field(default_factory=HOP)
    config: Path | None = None
    """Start from the settings in this config.json; options given beside it change them."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def of(self, learner: str) -> Any:
        """The settings of a learner; presets share theirs."""
        return replace(self.hop, preset=learner) if learner in PRESETS else getattr(self, learner)

    @property
    def steps_per_update(self) -> int:
        return self.parallel * self.rollout

    @property
    def updates(self) -> int:
        return -(-self.steps // self.steps_per_update)


NOT_SAVED = ("config", "json")
"""Options of `train` that say how the command is run, not what the run is."""


@dataclass(frozen=True)
class Collect:
    """Play episodes and keep them as a dataset: what was seen, played and earned, and the truth behind it."""

    out: Path
    """The file to write, NAME.npz."""
    game: str = "stag_hunt-4x4-4h1s"
    """Id of the game, with options behind it: snowdrift-4x4?horizon=50."""
    seats: str = "random"
    """Who plays: one entry for all seats, or one for each with commas between; scripts, pools (a+b) and frozen policies."""
    episodes: int = 2000
    """Whole episodes, rounded up so that every parallel game plays equally many."""
    parallel: int = 128
    """Parallel games, rounded up so that every member of every pool plays equally many."""
    meeting: int = 16
    """Episodes for which the same partners stay together."""
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Convert:
    """Make a dataset of what another library left as NumPy arrays, and hold it against the rules of the game.

    An array that is named here as it is without being given may be missing if it can be done without.
    """

    source: Annotated[Path, tyro.conf.Positional]
    """One .npz, or a folder of .npy files."""
    game: str
    """Id of the game that was played, with options behind it: snowdrift-4x4?horizon=50."""
    out: Path
    """The file to write, NAME.npz."""
    axes: str = "episode,time,seat"
    """What the leading axes of the arrays are, in their order. `episode`: one episode each, the rest is padding; `game` instead
    of it: games that run on after an end; `row` instead of both: all steps in a row."""
    frame: Literal["ego", "absolute"] = "ego"
    """Whether every seat sees itself first and the others in turn order behind it, or all see the players in order of seats."""
    observation: str = "obs"
    """Array of what was seen. With one step more than there are actions and an axis `episode`, its last one is the final one."""
    final_observation: str = "new_obs"
    """Array of what a step led to, or an episode; only the last step of an episode is looked up there."""
    action: str = "actions"
    """Array of whole numbers, or one-hot."""
    reward: str = "rewards"
    """Array of rewards, of each seat or common to all."""
    end: str = "dones"
    """Array that is 1 in the last step of an episode, or of a seat."""
    masks: str = "masks"
    """Array that is 0 one step after the last one of an episode; read if there is none of `end`."""
    truncated: str = "truncateds"
    """Array that is 1 where an episode was cut off by a limit of time that the seats do not see."""
    filled: str = "filled"
    """Array that is 0 in padding; of what it marks, the last one is the final observation."""
    present: str = "active_masks"
    """Array that is 0 where a seat has left."""
    legal: str = "available_actions"
    """Array of the actions that may be taken."""
    goal: str = "goals"
    """Array of what each seat was after, as numbers of the goals of the game; -1 for unknown."""
    probabilities: str = "action_probs"
    """Array of the probabilities that the actions were drawn from."""
    who: str = "partners"
    """Array of names or numbers of who sat where, by step, by episode, or once for all."""
    meeting: int = 1
    """Episodes for which the same partners stayed together."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped or killed, as if it had never been."""

    run: Annotated[str, tyro.conf.Positional]
    """A name under runs/, or a path."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Fit:
    """Train one module alone on a dataset, and measure it every epoch on episodes it has not seen."""

    module: Annotated[Literal["opponent_model", "goals", "world_model"], tyro.conf.Positional]
    """Which one."""
    data: Annotated[Path, tyro.conf.Positional]
    """A file that `otherminds collect` or `otherminds convert` has written."""
    name: str | None = None
    """A name under runs/, or a path: the folder for the results. None: module and dataset."""
    samples: int = 100_000
    """Steps to learn from; all there are if they are fewer."""
    held_out: float = 0.15
    """Share of the meetings that are kept from training, to measure on."""
    test_samples: int = 20_000
    """Steps of those that are measured on; all there are if they are fewer."""
    epochs: int = 10
    """How often all samples are gone through."""
    trajectories: Literal["all", "rewarded"] = "all"
    """Of `opponent_model`: learn from all episodes of a partner, or from those in which it reached a goal."""
    labels: Literal["reached", "true"] = "reached"
    """Of `opponent_model`, and of `goals` by hand: in learning, the goal that is told is the one that is reached in the end, or
    the true one, which only scripts tell. Measured is with true goals told, or with these where data hold no true ones."""
    partner_data: Literal["public", "theirs"] = "public"
    """Of `opponent_model`: learn from what the one who looks can see of a partner, or from the partner's own view as well as
    it sees it. Measured is always on the first."""
    player: int | None = None
    """Look through the eyes of this player alone, counted from 1; else through everybody's."""
    seed: int = 0
    """Of the first fit: initial weights, what is held out, and the order of samples."""
    seeds: int = 1
    """How many fits, with seeds in a row."""
    opponent_model: OpponentModel = field(default_factory=OpponentModel)
    goals: Goals = field(default_factory=Goals)
    world_model: WorldModel = field(default_factory=WorldModel)
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Diagnose:
    """Measure each module of fits alone, or the learning of a run, draw it, and name what seems to be broken."""

    targets: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Fits or runs: names under runs/, or paths. Several fits of different modules make one diagnosis."""
    data: Path | None = None
    """Games to measure on, a file that `otherminds collect` has written. None: those that the fit has not learned from."""
    samples: int = 20_000
    """Steps to measure on; all there are if they are fewer. Of a run: game steps that each checkpoint plays, in all seeds."""
    switching: float = 0.0
    """Of beliefs: chance that a partner changes its goal between two steps."""
    pictures: Flag = True
    """Draw what was measured."""
    seed: int = 0
    """Which steps, and of runs, which games."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the policies of a run, and say what each seat earns."""

    run: Annotated[str, tyro.conf.Positional]
    """A name under runs/, or a path."""
    episodes: int = 2000
    """Episodes for each seed."""
    play: Literal["sample", "greedy"] = "sample"
    """Draw actions from the policies, or always play the likeliest."""
    search: Flag = True
    """Of the run's own policies, if they search: whether they do so here."""
    seats: str | None = None
    """Who plays, as in train; `self` is the run's own policy of that seat. Without it: as at the end of the training."""
    game: str | None = None
    """Another game to play in; without it: the run's own."""
    step: str = "final"
    """Which checkpoint: a number of steps, `final` or `best`."""
    seed: int = 0
    """Of the evaluation."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Adapt:
    """Let the frozen policies of a run meet partners they were not trained with, and see how they adapt."""

    run: Annotated[str, tyro.conf.Positional]
    """A name under runs/, or a path."""
    sets: tuple[str, ...] = ("3ns", "3nh", "3random", "nh_ns_random", "2ns_random", "switchers")
    """Sets of partners, by name."""
    replicas: int = 64
    """Meetings with each set, equally many for every seat of the run."""
    steps: int = 2400
    """Of each meeting; what is remembered of the partners lasts from episode to episode."""
    last: int = 600
    """The score is the mean reward of episodes that end in so many last steps."""
    quick: bool = False
    """16 meetings with each set."""
    search: Flag = True
    """Of learners that search: whether they do so here."""
    game: str | None = None
    """Another game to play in; without it: the run's own."""
    step: str = "final"
    """Which checkpoint: a number of steps, `final` or `best`."""
    seed: int = 0
    """Of the meetings."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Ablate:
    """Train learners that differ in one thing, test them, and set them side by side. What is finished is kept: run it again to go
    on."""

    learners: tuple[str, ...] = ("hop_plus", "hop_plus_no_goal", "no_goal")
    """Who is compared, each in all seats: presets of HOP, or any learner."""
    game: str = "stag_hunt-4x4-4h1s"
    """Id of the game, with options behind it: snowdrift-4x4?horizon=50."""
    vary: tuple[str, ...] = ()
    """Options of `train` by value, a row for each and every learner: hop.imagined_fraction=0,0.2,0.5 steps=100000,200000."""
    warm: bool = False
    """Also each learner that can, from fits: games of scripts are collected, and its parts fitted on them alone before."""
    name: str = "ablation"
    """A name under runs/, or a path: the folder for runs and tables."""
    steps: int = 1_000_000
    """Game steps per seed."""
    seed: int = 0
    """The first seed."""
    seeds: int = 3
    """How many seeds of each."""
    options: str = ""
    """Options of `train` for all of them, as they would stand there: "--parallel 64 --hop.practice 0"."""
    episodes: int = 1000
    """Episodes of self-play for each seed, with search and, of those who search, without."""
    sets: tuple[str, ...] | None = None
    """Sets of strangers to meet; none: all there are for the game. Without a value: nobody."""
    replicas: int = 16
    """Meetings with each set for each seed."""
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Audit:
    """Check a game or a run for silent failures: PASS or FAIL, with the figures."""

    target: Annotated[str, tyro.conf.Positional]
    """Id of a game; anything else is a run: a name under runs/, or a path."""
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Bench:
    """Measure speed, beside named peers in the same run."""

    what: Annotated[Literal["games", "ppo", "runs", "planning", "hop"], tyro.conf.Positional]
    """What to measure: how fast games are stepped, how fast PPO learns, what runs take to start and survive, how fast the search
    is, or where the time of HOP goes."""
    games: tuple[str, ...] = ()
    """Of `games`: ids of games; all of ours if none is named."""
    parallel: tuple[int, ...] = (1, 64, 1024, 4096)
    """Of `games`: numbers of parallel games."""
    peer: Path | None = None
    """Of `ppo`: a folder with a clone of the JaxMARL repository, whose own IPPO is then measured beside ours."""
    seed: int = 0
    """Of `runs`: which moments a run is killed at."""
    json: bool = False
    """Print one JSON object and nothing else."""
