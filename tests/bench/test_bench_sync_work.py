import numpy as np
import pytest

from bench.sync_work import BATCH, WORKERS, WORKS


@pytest.mark.parametrize("name", WORKS)
def test_the_workers_shares_of_a_batch_are_the_batch(name: str) -> None:
    work = WORKS[name]
    x, y = work.data()
    shares = [work.share(rank) for rank in range(WORKERS)]
    together = np.concatenate([images[3] for images, _ in shares])
    np.testing.assert_array_equal(together, x[3 * BATCH : 4 * BATCH])
    np.testing.assert_array_equal(np.concatenate([numbers[3] for _, numbers in shares]), y[300:400])
    assert shares[0][0].shape[1] == BATCH // WORKERS


def test_an_outcome_says_how_far_the_weights_went() -> None:
    work = WORKS["mlp"]
    moved = [w + 0.1 for w in work.first_weights()]
    outcome = work.outcome(2.0, moved)
    assert outcome["value"] == BATCH * work.steps / 2
    count = sum(w.size for w in moved)
    assert outcome["check"]["weights moved by"] == pytest.approx(0.1 * count**0.5, rel=1e-3)
    assert work.outcome(2.0, work.first_weights())["check"]["loss fell by"] == 0
