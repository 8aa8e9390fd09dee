"""Train a PPO beside three stag hunters, see that it learned to join them, audit the run, and leave a replay to look at.

python examples/train_and_look.py [NAME] [STEPS]
"""

import sys

from otherminds import render, seats
from otherminds.audit import describe
from otherminds.audit_run import audit_run
from otherminds.config import Evaluate, Train
from otherminds.evaluate import evaluate
from otherminds.games import make
from otherminds.runs import folder_of
from otherminds.train import train


def main(name: str, steps: int) -> None:
    folder = folder_of(name)
    config = Train(seats="ppo,nearest_stag,nearest_stag,nearest_stag", steps=steps, seeds=3)
    result = train(config, folder=folder)
    print(f"{result['steps']:,} steps of {config.seeds} seeds in {result['seconds']} s")

    earned = evaluate(Evaluate(run=str(folder), episodes=2000))
    for seat, (who, reward) in enumerate(zip(earned["seats"], earned["reward"]["per_seat"], strict=True)):
        print(f"player_{seat + 1} {who:<14} {reward['mean']:.2f} [{reward['low']:.2f}, {reward['high']:.2f}]")

    for check in audit_run(folder):
        print({True: "PASS", False: "FAIL", None: "none"}[check.passed], check.name, "-", describe(check))

    game = make(config.game)
    who = [f"run:{folder}", "nearest_stag", "nearest_stag", "nearest_stag"]
    episode = render.record(game, seats.resolve(game, who), ["ppo", *who[1:]], seed=0)
    render.save_gif(episode, folder / "replay.gif")
    print(f"replay: {folder / 'replay.gif'}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "example", int(sys.argv[2]) if len(sys.argv) > 2 else 500_000)
