# SPDX-License-Identifier: Apache-2.0
"""bench.py on sides whose numbers are known: what it calls held, short and not run."""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import bench  # noqa: E402

# A side that takes SECONDS a sample in every round but the first, which is slow: warm-up.
FAKE = """
import json, sys
name, seconds, status = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
print("a library says hello")
print(json.dumps({"side": name, "info": "version of " + name}), flush=True)
for n, line in enumerate(sys.stdin):
    print(json.dumps({"side": name, "seconds": seconds * (50 if n == 0 else 1), "samples": 1, "count": 7}), flush=True)
sys.exit(status)
"""


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.fake = pathlib.Path(self.folder.name, "fake.py")
        self.fake.write_text(FAKE)

    def side(self, name, seconds, status=0):
        return bench.Process(f"{sys.executable} {self.fake} {name} {seconds} {status}", 1, {"FAKE_SETTING": "yes"})

    def run_sides(self, *sides):
        return bench.run(bench.Comparison(list(sides), [], 3), {}, 3)

    def judge(self, samples, kind, bar, ours=("a",), theirs=("b",)):
        return bench.judge(bench.Row("row", kind, ours, theirs, bar), samples)[:2]

    def test_ratios_of_medians_without_the_warm_up(self):
        samples, infos, problems = self.run_sides(self.side("a", 1), self.side("b", 3))
        self.assertEqual([len(samples[side]) for side in "ab"], [3, 3])
        self.assertEqual(problems, [])
        self.assertEqual(infos["a"], "version of a, FAKE_SETTING=yes")
        self.assertEqual(self.judge(samples, "rate", 3), ("3.00 x", True))
        self.assertEqual(self.judge(samples, "rate", 3.1), ("3.00 x", False))
        self.assertEqual(self.judge(samples, "cost", 0.34), ("0.333", True))
        self.assertEqual(self.judge(samples, "cost", 0.33), ("0.333", False))
        self.assertEqual(self.judge(samples, "paired", 0.34), ("0.333", True))
        self.assertEqual(self.judge(samples, "equal", 0), ("7", True))

    def test_the_best_rival_counts(self):
        samples, _, _ = self.run_sides(self.side("a", 1), self.side("b_0", 3), self.side("b_2", 2))
        self.assertEqual(self.judge(samples, "rate", 2.5, theirs=("b_0", "b_2")), ("2.00 x", False))

    def test_a_noisy_pair_is_not_held_by_its_median(self):
        answers = lambda values: [{"seconds": value, "samples": 1} for value in values]  # noqa: E731
        noisy = {"a": answers([0.5, 1.0, 1.0, 1.0, 1.9, 1.9, 0.9]), "b": answers([1.0] * 7)}
        self.assertFalse(self.judge(noisy, "paired", 1.03)[1])

    def test_of_rivals_that_differ_by_noise_the_luckiest_does_not_count(self):
        answers = lambda values: [{"seconds": value, "samples": 1} for value in values]  # noqa: E731
        samples = {"a": answers([1.0] * 8), "b/1": answers([0.9, 1.1] * 4), "b/2": answers([1.1, 0.9] * 4),
                   "c/1": answers([0.8] * 8), "c/2": answers([1.0] * 8)}
        measured, held = self.judge(samples, "halves", 1.03, theirs=("b/*",))
        self.assertTrue(held, measured)
        self.assertEqual(self.judge(samples, "halves", 1.03, theirs=("c/*",)), ("1.250", False))
        self.assertEqual(self.judge(samples, "halves", 1.03, theirs=("b/1",))[0], "1.005")
        with self.assertRaises(bench.NotRun):
            self.judge(samples, "halves", 1.03, theirs=("d/*",))

    def test_the_fastest_quarter_and_the_last_count(self):
        answers = lambda values: [{"seconds": value, "samples": 2, "count": value} for value in values]  # noqa: E731
        samples = {"a": answers([9, 0.1, 9, 1, 2]), "b": answers([9, 9, 9, 1.5, 1])}
        self.assertEqual(self.judge(samples, "fastest", 1.5), ("1.500 x", True))
        self.assertEqual(self.judge(samples, "fastest", 1.6), ("1.500 x", False))
        self.assertEqual(self.judge(samples, "least", 2), ("2.000", True))
        self.assertEqual(self.judge(samples, "least", 2.1), ("2.000", False))

    def test_unequal_counts_are_short(self):
        samples, _, _ = self.run_sides(self.side("a", 1), self.side("b", 1))
        samples["b"][1]["count"] = 8
        self.assertEqual(self.judge(samples, "equal", 0), ("7 / 7,8", False))

    def test_sizes_are_compared_by_their_median(self):
        answer = lambda count: {"seconds": 1, "samples": 1, "count": count}  # noqa: E731
        samples = {"a": [answer(104), answer(999), answer(104)], "b": [answer(100)] * 3}
        self.assertEqual(self.judge(samples, "size", 1.05), ("1.040", True))
        self.assertEqual(self.judge(samples, "size", 1.03), ("1.040", False))

    def test_counts_may_be_shares(self):
        answer = lambda count: {"seconds": 1, "samples": 1, "count": count}  # noqa: E731
        self.assertEqual(self.judge({"a": [answer(0.98), answer(1.001)]}, "count", 1, theirs=("a",)), ("1.001", False))
        self.assertEqual(self.judge({"a": [answer(0.98), answer(1)]}, "count", 1, theirs=("a",)), ("1", True))

    def test_the_best_of_the_sides_with_such_a_name(self):
        answers = lambda seconds: [{"seconds": seconds, "samples": 1}]  # noqa: E731
        samples = {"a": answers(1), "every1/2": answers(3), "every1/4": answers(2), "every10/4": answers(1)}
        self.assertEqual(bench.best(("every1/*",), samples), "every1/4")
        self.assertEqual(self.judge(samples, "cost", 0.5, theirs=("every1/*",)), ("0.500", True))
        with self.assertRaisesRegex(bench.NotRun, "every2"):
            bench.best(("every2/*",), samples)

    def test_a_note_is_neither_held_nor_short(self):
        samples, _, _ = self.run_sides(self.side("a", 1), self.side("b", 2))
        self.assertEqual(self.judge(samples, "cost", None), ("0.500", None))
        self.assertEqual(bench.bar_text(bench.Row("row", "cost", ("a",), ("b",), None)), "note")

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs Python torch")
    def test_the_peak_of_a_program_whose_peak_is_known(self):
        peer = ROOT / "benchmarks" / "peers" / "recompute.py"
        check = subprocess.run([sys.executable, peer, "--check"], capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stderr)
        blocks, backward = (int(peak) for peak in check.stdout.split())
        self.assertEqual(blocks, 20 << 20)
        self.assertEqual(backward >> 10, 8 << 10)  # and scalars

    def test_a_missing_or_failing_side_is_not_run_and_the_others_go_on(self):
        missing = bench.Process(f"{self.folder.name}/no-such-program")
        samples, _, problems = self.run_sides(self.side("a", 1), missing, self.side("c", 2, status=3), self.side("b", 2))
        self.assertEqual(sorted(samples), ["a", "b"])
        self.assertEqual(len(problems), 2)
        self.assertIn("no-such-program is not there", str(problems[0]))
        self.assertIn("exit status 3", str(problems[1]))
        with self.assertRaises(bench.NotRun):
            self.judge(samples, "rate", 1, theirs=("c",))


if __name__ == "__main__":
    unittest.main()
