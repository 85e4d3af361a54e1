"""``python -m bench``: list the benchmarks, or run some of them.

``python -m bench recovery`` kills tasks beside peers, ``python -m bench kills`` random ones for minutes,
``python -m bench faults`` makes each fault once and checks its bounds, and ``python -m bench goodput`` says
what part of the time is left for training when tasks are killed and stopped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from bench import against, faults, frame, goodput, kills, recovery, report
from bench.script import NotThere
from bench.table import BENCHMARKS, chosen
from bench.table_gpu import REHEARSAL


def main() -> int:
    commands = {
        "recovery": recovery.main,
        "kills": kills.main,
        "faults": faults.main,
        "goodput": goodput.main,
    }
    if sys.argv[1:2] and sys.argv[1] in commands:
        return commands[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m bench", description="Side-by-side benchmarks.")
    parser.add_argument(
        "names", nargs="*", help='keys such as p1 or p1.tensorflow-3, or "all"; none: list them'
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs (default 5)")
    parser.add_argument("--peers-only", action="store_true", help="measure the other sides alone")
    parser.add_argument(
        "--against", metavar="COMMIT", help="the other side is nbdist as this commit has it, not the peer"
    )
    options = parser.parse_args()
    if options.against and (options.peers_only or not options.names):
        parser.error("--against takes benchmarks by name, and has no other peers: leave out --peers-only")
    if not options.names:
        print("\n".join(report.heading(benchmark) for benchmark in BENCHMARKS))
        return 0
    if options.against:
        return run_against(chosen(options.names), options.against, options.rounds)
    passed = [run_one(benchmark, options.rounds, options.peers_only) for benchmark in chosen(options.names)]
    return 0 if all(passed) else 1


def run_one(benchmark: frame.Benchmark | frame.Survey, rounds: int, peers_only: bool) -> bool:
    """Run and report one benchmark; return whether its bar is met."""
    print(report.heading(benchmark), flush=True)
    alone: list[frame.Outcome] = []
    try:
        if isinstance(benchmark, frame.Survey):
            return peers_only or survey(benchmark, rounds)
        if peers_only:
            print(report.peer_summary(benchmark, [benchmark.peer() for _ in range(rounds)]), flush=True)
            return True
        result = frame.run(
            replace(benchmark, ours=lambda: kept(benchmark.ours(), alone)),
            rounds,
            lambda number, ours, peer: print(
                report.round_line(number, ours, peer, benchmark.unit), flush=True
            ),
        )
    except NotThere as problem:
        print(f"    not measured: {problem}", flush=True)
        if alone and isinstance(benchmark, frame.Benchmark):
            print(f"    nbdist alone: {alone[-1]['value']:.4g} {benchmark.unit}, no ratio", flush=True)
        return False
    print(report.summary(benchmark, result), flush=True)
    if not REHEARSAL:
        report.keep(result)
    return result.met


def run_against(benchmarks: list[frame.Benchmark | frame.Survey], commit: str, rounds: int) -> int:
    """Run our sides as they are and as they were at a commit, in turn; each side once, whatever its peers."""
    passed = True
    done: list[object] = []
    try:
        with against.unpacked(commit) as folder:
            for benchmark in benchmarks:
                try:
                    ours = against.against(benchmark, commit, folder)
                except NotThere as problem:
                    print(f"{benchmark.key}: not measured: {problem}", flush=True)
                    passed = False
                    continue
                if ours.ours in done:
                    continue
                done.append(ours.ours)
                if said := against.difference(ours, folder):
                    print(f"{ours.key}: {said}", flush=True)
                passed &= run_one(ours, rounds, False)
    except NotThere as problem:
        print(f"not measured: {problem}", flush=True)
        return 1
    return 0 if passed else 1


def kept(outcome: frame.Outcome, outcomes: list[frame.Outcome]) -> frame.Outcome:
    outcomes.append(outcome)
    return outcome


def survey(wanted: frame.Survey, rounds: int) -> bool:
    """Run and report one survey; return whether all its bars are met."""
    found: list[dict[str, float]] = []
    for number in range(min(rounds, wanted.most)):
        found.append(wanted.measure())
        print(report.found_line(number, wanted, found[-1]), flush=True)
    result = frame.Found(wanted.key, wanted.goals, found)
    print(report.found_summary(result), flush=True)
    report.keep(result)
    return result.all_met


if __name__ == "__main__":
    raise SystemExit(main())
