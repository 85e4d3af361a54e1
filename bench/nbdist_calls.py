"""Our side: 200 small ops as a program, or through a session of this process; microseconds per op."""

from __future__ import annotations

import argparse
import json

import nbdist as nb
from bench import overhead_work as work
from nbdist.graph.compile.program import compile_program
from nbdist.graph.tensor import symbolic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--through", choices=["program", "session"], default="program")
    through = parser.parse_args().through
    x, w, b = work.data()
    with nb.Graph().as_default() as graph:
        fed = nb.placeholder(x.dtype, x.shape)
        weights = nb.Variable(w), nb.Variable(b)
        y = work.expression(symbolic, fed, *weights)
        start = nb.global_variables_initializer()
    if through == "program":
        program = compile_program([y], feeds=[fed], shapes=[x.shape], values=dict(zip(weights, (w, b))))
        lines = len(program.source.splitlines()) - 2
        assert lines == work.OPS, program.source
        seconds, result = work.best(lambda: program(x)), program(x)[0]
    else:
        with nb.Session(graph=graph) as session:
            session.run(start)
            feeds = {fed: x}
            seconds, result = work.best(lambda: session.run(y, feeds)), session.run(y, feeds)
    print(json.dumps({"value": seconds / work.OPS * 1e6, "check": work.check(result)}))


if __name__ == "__main__":
    main()
