"""Modules that learners are made of: torsos, recurrent cores, heads. No reinforcement learning here.

Weights are made on the host, one matrix at a time, with NumPy: the QR decomposition behind orthogonal weights deadlocks under
`vmap` inside `jit` on two cores. A module takes any leading axes; several seats are one module with stacked weights under `vmap`.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from otherminds.config import require

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "silu": jax.nn.silu}


def generator(key: Array) -> np.random.Generator:
    """A source of numbers on the host that a JAX key determines."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())


def orthogonal(random: np.random.Generator, rows: int, columns: int, gain: float) -> Float[Array, "rows columns"]:
    """A matrix with orthonormal rows or columns, times `gain` (Saxe et al. 2014)."""
    square, triangle = np.linalg.qr(random.standard_normal((max(rows, columns), min(rows, columns))))
    square = square * np.sign(np.diag(triangle))
    return jnp.asarray((square if rows >= columns else square.T) * gain, jnp.float32)


@jax.custom_vjp
def product(x: Float[Array, "rows inputs"], weight: Float[Array, "inputs outputs"]) -> Float[Array, "rows outputs"]:
    """x W, with a derivative that is fast on a CPU.

    Left to itself, the compiler sums over rows by the slower of its two kernels, and a PPO update takes a third longer. So the
    narrower factor is turned first; barriers keep the compiler from folding that back into the product.
    """
    return x @ weight


def _product_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ weight, (x, weight)


def _product_backward(known: tuple[Array, Array], change: Array) -> tuple[Array, Array]:
    x, weight = known
    apart = jax.lax.optimization_barrier
    narrows = weight.shape[1] < weight.shape[0]
    return change @ weight.T, apart(apart(change.T) @ x).T if narrows else apart(x.T) @ change


product.defvjp(_product_forward, _product_backward)


class Dense(eqx.Module):
    """x W + b."""

    weight: Float[Array, "*stack inputs outputs"]
    bias: Float[Array, "*stack outputs"]

    @staticmethod
    def make(random: np.random.Generator, inputs: int, outputs: int, gain: float = 2**0.5) -> "Dense":
        return Dense(orthogonal(random, inputs, outputs, gain), jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "*n inputs"]) -> Float[Array, "*n outputs"]:
        flat = product(x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1) + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))


WHOLE = 25
"""Cells of the largest board over which a convolution is one product of the whole board."""


class Convolution(eqx.Module):
    """3x3 over planes, without `lax.conv`, which inside `scan` is thirty times slower on a CPU.

    As nine shifts and one product; on small boards as one product of the whole board with a matrix that is mostly nothing: twice
    the arithmetic in a fraction of the time, as nothing has to be laid out anew.
    """

    weight: Float[Array, "*stack nine_planes channels"]
    bias: Float[Array, "*stack channels"]

    @staticmethod
    def make(random: np.random.Generator, planes: int, channels: int) -> "Convolution":
        return Convolution(orthogonal(random, 9 * planes, channels, 2**0.5), jnp.zeros(channels))

    def __call__(self, x: Float[Array, "*n H W planes"]) -> Float[Array, "*n H W channels"]:
        height, width, planes = x.shape[-3:]
        if height * width <= WHOLE:
            nine = self.weight.reshape(9, planes, -1)
            matrix = jnp.einsum("kij,kpc->ipjc", _shifts(height, width), nine).reshape(height * width * planes, -1)
            flat = product(x.reshape(-1, height * width * planes), matrix)
            return flat.reshape(*x.shape[:-1], -1) + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))
        padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
        shifted = [padded[..., row : row + height, column : column + width, :] for row in range(3) for column in range(3)]
        patches = jnp.concatenate(shifted, -1)
        return patches @ self.weight + self.bias.reshape((1,) * (x.ndim - 1) + (-1,))


def _shifts(height: int, width: int) -> Float[np.ndarray, "9 from to"]:
    """Which cell each cell sees in each of nine directions, as one-hot matrices from cells to cells."""
    cells = np.stack(np.divmod(np.arange(height * width), width), -1)
    around = np.stack(np.divmod(np.arange(9), 3), -1) - 1
    return (cells[None, :, None] == cells[None, None] + around[:, None, None]).all(-1).astype(np.float32)


class Torso(eqx.Module):
    """From an observation to features: layers over the flattened observation, over planes behind convolutions, or over the board
    as it lies around the cell that the first plane marks."""

    convolutions: tuple[Convolution, ...]
    layers: tuple[Dense, ...]
    features: int = eqx.field(static=True)
    inner_axes: int = eqx.field(static=True)  # how many axes an observation has
    activation: str = eqx.field(static=True)
    centred: bool = eqx.field(static=True)

    @staticmethod
    def make(
        random: np.random.Generator,
        shape: Sequence[int],
        hidden: Sequence[int],
        activation: str,
        channels: Sequence[int] = (),
        centred: bool = False,
    ) -> "Torso":
        """`shape` is an observation's, [features] or [planes, H, W]; `channels` are those of the convolutions, if any."""
        planes, convolutions = shape[0], []
        for count in channels:
            convolutions.append(Convolution.make(random, planes, count))
            planes = count
        size = int(np.prod(shape)) if not channels else planes * int(np.prod(shape[1:]))
        if centred:
            size = planes * (2 * shape[1] - 1) * (2 * shape[2] - 1) + planes - 1
        layers = []
        for count in hidden:
            layers.append(Dense.make(random, size, count))
            size = count
        return Torso(tuple(convolutions), tuple(layers), size, len(shape), activation, centred)

    def __call__(self, observation: Float[Array, "*n"]) -> Float[Array, "*m features"]:
        activate = ACTIVATIONS[self.activation]
        lead = observation.shape[: observation.ndim - self.inner_axes]
        x = observation
        if self.centred:
            flat = jnp.moveaxis(x.reshape(-1, *x.shape[len(lead) :]), -3, -1)
            x = around(flat[..., 0], flat[..., 1:], whole=True)  # who is there at all need not be learned place by place
        if self.convolutions:
            x = jnp.moveaxis(x, -3, -1)
        for convolution in self.convolutions:
            x = activate(convolution(x))
        x = x.reshape(*lead, -1)
        for layer in self.layers:
            x = activate(layer(x))
        return x


class Conditioned(eqx.Module):
    """A layer whose input comes with something told beside it: a goal, an identity, an action.

    `concat` puts it beside the input. `film` scales and shifts the outputs by it (Perez et al. 2018). `generated` lets it choose
    the weights: those of the layer are a base and one increment for each number told.
    """

    base: Dense
    tell: Dense | None
    increments: Float[Array, "*stack told inputs outputs"] | None
    kind: str = eqx.field(static=True)

    @staticmethod
    def make(random: np.random.Generator, inputs: int, told: int, outputs: int, kind: str) -> "Conditioned":
        if kind == "concat" or not told:
            return Conditioned(Dense.make(random, inputs + told, outputs), None, None, "concat")
        base = Dense.make(random, inputs, outputs)
        if kind == "film":
            return Conditioned(base, Dense.make(random, told, 2 * outputs, 0.1), None, kind)
        grown = jnp.stack([orthogonal(random, inputs, outputs, 0.1) for _ in range(told)])
        return Conditioned(base, Dense.make(random, told, outputs, 0.1), grown, kind)

    def __call__(self, x: Float[Array, "*n inputs"], told: Float[Array, "*n told"]) -> Float[Array, "*n outputs"]:
        if self.tell is None:
            return jax.nn.relu(self.base(jnp.concatenate([x, told], -1)))
        if self.increments is None:
            scale, shift = jnp.split(self.tell(told), 2, -1)
            return jax.nn.relu(self.base(x) * (1 + scale) + shift)
        grown = jnp.einsum("...t,tio,...i->...o", told, self.increments, x)
        return jax.nn.relu(self.base(x) + grown + self.tell(told))

    def each(self, x: Float[Array, "n inputs"], told: Float[Array, "k told"]) -> Float[Array, "n k outputs"]:
        """Every input with each of several things told; what does not depend on both is computed once."""
        if self.tell is None:
            inputs = x.shape[-1]
            seen = product(x, self.base.weight[:inputs]) + self.base.bias[None]
            return jax.nn.relu(seen[:, None] + (told @ self.base.weight[inputs:])[None])
        base, added = self.base(x)[:, None], self.tell(told)[None]
        if self.increments is None:
            scale, shift = jnp.split(added, 2, -1)
            return jax.nn.relu(base * (1 + scale) + shift)
        return jax.nn.relu(base + jnp.einsum("kt,tio,ni->nko", told, self.increments, x) + added)


class Cells(eqx.Module):
    """From planes to features of every cell: one convolution for what is there, one, repeated, to carry it across the board.

    The repeated one has the same weights at every repetition and sees the input again, so what it learns of a short way holds for
    a long one. After n repetitions a cell knows of what lies n + 1 cells away.
    """

    enter: Convolution
    carry: Convolution | None  # none where nothing is carried
    repeats: int = eqx.field(static=True)

    @staticmethod
    def make(random: np.random.Generator, planes: int, channels: int, repeats: int) -> "Cells":
        enter, carry = Convolution.make(random, planes, channels), Convolution.make(random, channels, channels)
        return Cells(enter, carry if repeats else None, repeats)

    def __call__(self, x: Float[Array, "*n H W planes"]) -> Float[Array, "*n H W channels"]:
        entered = self.enter(x)
        features = jax.nn.relu(entered)
        for _ in range(self.repeats):
            assert self.carry is not None
            features = jax.nn.relu(self.carry(features) + entered)
        return features


class Centred(eqx.Module):
    """From planes to features of the board as it lies around one cell, which the first plane marks: layers over the whole of it.

    What lies where is seen relative to that cell, so what is learned of a place holds wherever one stands. The planes of other
    players are added up unless they are to be seen `apart`, and one shows where the board ends. Ten times faster than `Cells` on
    a CPU; what is behind a corner has to be learned place by place.
    """

    layers: tuple[Dense, ...]
    players: int = eqx.field(static=True)
    apart: bool = eqx.field(static=True)

    @staticmethod
    def make(
        random: np.random.Generator, shape: Sequence[int], players: int, hidden: Sequence[int], apart: bool = False
    ) -> "Centred":
        """`shape` is an observation's, [planes, H, W], of which the first show the players."""
        planes, height, width = shape
        around_it = (2 * height - 1) * (2 * width - 1)
        size = planes * around_it + planes - 1 if apart else (planes - players + 2) * around_it
        return Centred(tuple(Dense.make(random, *pair) for pair in itertools.pairwise((size, *hidden))), players, apart)

    def __call__(self, x: Float[Array, "n H W planes"]) -> Float[Array, "n features"]:
        if self.apart:
            features = around(x[..., 0], x[..., 1:], whole=True)
        else:
            others = x[..., 1 : self.players].sum(-1, keepdims=True)
            features = around(x[..., 0], jnp.concatenate([others, x[..., self.players :]], -1))
        for layer in self.layers:
            features = jax.nn.relu(layer(features))
        return features


def around(own: Float[Array, "n H W"], planes: Float[Array, "n H W planes"], whole: bool = False) -> Float[Array, "n around"]:
    """The board as it lies around the cell that `own` marks, and where it ends; if it is to be seen as a `whole` too, what there
    is on it at all, plane by plane. Who is out of sight is nowhere, and nothing is seen around it."""
    count, height, width, _ = planes.shape
    inside = jnp.ones((count, height, width, 1))
    cells = jnp.concatenate([planes, inside], -1).reshape(count, height * width, -1)
    beyond = jnp.pad(cells, [(0, 0), (0, 1), (0, 0)])  # one cell more, with nothing in it, for all that is off the board
    flat = own.reshape(count, -1)
    place, shown = flat.argmax(-1), flat.any(-1)
    seen = jnp.take_along_axis(beyond, jnp.asarray(_lying_around(height, width))[place][..., None], 1).reshape(count, -1)
    if whole:
        seen = jnp.concatenate([seen, planes.max((1, 2))], -1)
    return seen * shown[:, None]


@functools.cache
def _lying_around(height: int, width: int) -> np.ndarray:
    """Which cell lies where around each cell, [cells, around]; off the board: one past the last. Looking cells up in this table
    is four times as fast as cutting a window out of a padded board."""
    row, column = np.divmod(np.arange(height * width)[:, None], width)
    down, right = np.divmod(np.arange((2 * height - 1) * (2 * width - 1))[None], 2 * width - 1)
    y, x = row + down - (height - 1), column + right - (width - 1)
    return np.where((y >= 0) & (y < height) & (x >= 0) & (x < width), y * width + x, height * width)


class Core(eqx.Module):
    """Memory from step to step: a GRU (Cho et al. 2014) or an LSTM (Hochreiter and Schmidhuber 1997)."""

    inputs: Dense
    recurrent: Dense
    kind: str = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @staticmethod
    def make(random: np.random.Generator, kind: str, inputs: int, size: int) -> "Core":
        gates = {"gru": 3, "lstm": 4}[kind]
        recurrent = Dense.make(random, size, gates * size, 1.0)
        core = Core(Dense.make(random, inputs, gates * size, 1.0), recurrent, kind, size)
        if kind == "lstm":  # remember at first: the forget gate starts open
            core = eqx.tree_at(lambda c: c.inputs.bias, core, core.inputs.bias.at[size : 2 * size].set(1.0))
        return core

    @property
    def memory(self) -> int:
        """How many numbers it remembers."""
        return self.size * (2 if self.kind == "lstm" else 1)

    def __call__(self, memory: Float[Array, "*n memory"], x: Float[Array, "*n inputs"]) -> tuple[Array, Array]:
        """(next memory, what it says)."""
        if self.kind == "gru":
            reset_x, update_x, new_x = jnp.split(self.inputs(x), 3, -1)
            reset_h, update_h, new_h = jnp.split(self.recurrent(memory), 3, -1)
            update = jax.nn.sigmoid(update_x + update_h)
            new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
            hidden = (1 - update) * new + update * memory
            return hidden, hidden
        hidden, cell = jnp.split(memory, 2, -1)
        enter, forget, new, leave = jnp.split(self.inputs(x) + self.recurrent(hidden), 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return jnp.concatenate([hidden, cell], -1), hidden


def unroll(
    core: Core,
    memory: Float[Array, "*n memory"],
    x: Float[Array, "T *n inputs"],
    fresh: Bool[Array, "T *n"],
    present: Bool[Array, "T *n"],
) -> tuple[Float[Array, "T *n memory"], Float[Array, "T *n features"]]:
    """Run a core through time, starting empty wherever `fresh`, remembering nothing of steps at which it was not `present`.

    Gives the memory after each step and what it says there.
    """

    def one(memory: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        x, fresh, present = row
        memory, said = remember(core, jnp.where(fresh[..., None], 0.0, memory), x, present)
        return memory, (memory, said)

    return jax.lax.scan(one, memory, (x, fresh, present))[1]


def remember(
    core: Core, memory: Float[Array, "*n memory"], x: Float[Array, "*n inputs"], present: Bool[Array, "*n"]
) -> tuple[Float[Array, "*n memory"], Float[Array, "*n features"]]:
    """One step of a core: the memory after it, unchanged where not `present`, and what it says."""
    later, said = core(memory, x)
    return jnp.where(present[..., None], later, memory), said


class Trunk(eqx.Module):
    """A torso and, if it remembers, a core."""

    torso: Torso
    core: Core | None

    @staticmethod
    def make(
        random: np.random.Generator,
        shape: Sequence[int],
        hidden: Sequence[int],
        activation: str,
        channels: Sequence[int],
        core: str,
        core_size: int,
        centred: bool = False,
    ) -> "Trunk":
        torso = Torso.make(random, shape, hidden, activation, channels, centred)
        return Trunk(torso, None if core == "none" else Core.make(random, core, torso.features, core_size))

    @property
    def features(self) -> int:
        return self.core.size if self.core else self.torso.features

    @property
    def memory(self) -> int:
        """How many numbers it remembers."""
        return self.core.memory if self.core else 0

    def step(
        self, memory: Float[Array, "*n memory"], observation: Float[Array, "..."], present: Bool[Array, "*n"]
    ) -> tuple[Float[Array, "*n memory"], Float[Array, "*n features"]]:
        """(memory after it, features) of one moment."""
        features = self.torso(observation)
        return remember(self.core, memory, features, present) if self.core else (memory, features)

    def through(
        self,
        memory: Float[Array, "*n memory"],
        observation: Float[Array, "..."],
        fresh: Bool[Array, "T *n"],
        present: Bool[Array, "T *n"],
    ) -> tuple[Float[Array, "T *n memory"], Float[Array, "T *n features"]]:
        """(memory after each step, features) of moments in a row, all at once as far as there is no memory."""
        features = self.torso(observation)
        if self.core is None:
            return jnp.zeros((*fresh.shape, 0)), features
        return unroll(self.core, memory, features, fresh, present)


def stack(modules: Sequence[Any]) -> Any:
    """Several modules of one shape as one, with a leading axis: for `vmap` over seats or seeds."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *modules)


def same_shape(fresh: Any, fitted: Any, name: str) -> Any:
    """`fitted`, if it is of the same kind and size as what stands in its place; else it is refused."""
    named = [
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(eqx.filter(module, eqx.is_array))}
        for module in (fresh, fitted)
    ]
    shapes = [{path: (leaf.shape, leaf.dtype) for path, leaf in leaves.items()} for leaves in named]
    require(shapes[0] == shapes[1], f"the {name} to start from has other layers than this learner's: fit one with its settings")
    arrays, rest = eqx.partition(fresh, eqx.is_array)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), list(named[1].values())), rest)
